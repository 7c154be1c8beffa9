#include "kvik/attention/attention.h"

#include <algorithm>
#include <cmath>

namespace kvik {

float scale_of(const AttentionParams& params, int64_t head_dim_k) {
  if (params.scale) return *params.scale;
  if (head_dim_k == 0) return 1.0f;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_k)));
}

std::optional<int> window_of(const AttentionCall& call) {
  std::optional<int> window = call.params.window;
  for (const Segment& segment : call.segments) {
    if (segment.view.window) window = std::min(window.value_or(INT32_MAX), *segment.view.window);
  }
  return window;
}

int64_t sequence_end(const AttentionCall& call, int seq) {
  const auto b = static_cast<size_t>(seq);
  int64_t end = 0;
  for (const Segment& segment : call.segments) {
    end = std::max(end, int64_t{segment.view.first_pos[b]} + segment.view.kv_len[b]);
  }
  return end;
}

PositionRange visible_range(const AttentionCall& call, int segment_idx, int seq, int64_t p) {
  const auto b = static_cast<size_t>(seq);
  PositionRange range;
  // A later segment with `newest` takes its keys from the earlier ones, so the walk goes backwards.
  int64_t taken_from = INT64_MAX;
  for (int i = static_cast<int>(call.segments.size()) - 1; i >= segment_idx; --i) {
    const Segment& segment = call.segments[static_cast<size_t>(i)];
    const int64_t first = segment.view.first_pos[b];
    range.begin = std::max<int64_t>(segment.begin, first);
    range.end = std::min<int64_t>(segment.end, first + segment.view.kv_len[b]);
    if (call.params.causal) range.end = std::min(range.end, p + 1);
    if (segment.newest) range.begin = std::max(range.begin, p - *segment.newest + 1);
    range.end = std::min(range.end, taken_from);
    if (segment.newest && !range.empty()) taken_from = range.begin;
  }
  const std::optional<int> window = window_of(call);
  if (window) range.begin = std::max(range.begin, p - *window + 1);
  return range;
}

}  // namespace kvik
