#include "attention/step_check.h"

#include <algorithm>
#include <functional>
#include <string>

namespace kvik::internal {
namespace {

std::string num(int64_t x) { return std::to_string(x); }

// Index in `whole` of the first element of `part`, where `part` lies in it.
std::optional<size_t> place_in(std::span<const int32_t> part, std::span<const int32_t> whole) {
  const std::less_equal<const int32_t*> in_order;
  if (!in_order(whole.data(), part.data()) ||
      !in_order(part.data() + part.size(), whole.data() + whole.size())) {
    return std::nullopt;
  }
  return static_cast<size_t>(part.data() - whole.data());
}

bool is_written(const StepRows& rows, int layer) {
  const auto at = static_cast<size_t>(layer);
  return layer >= 0 && at < rows.written.size() && rows.written[at];
}

// Oldest position whose key a query of the segment may want.
int64_t oldest_seen(const Segment& segment, const AttentionCall& call, size_t b) {
  const std::optional<int> window = window_of(call);
  if (!window && !segment.newest) return 0;
  const int64_t reach =
      std::min<int64_t>(window.value_or(INT32_MAX), segment.newest.value_or(INT32_MAX));
  const int seq = static_cast<int>(b);
  const int64_t first_query = sequence_end(call, seq) - call.q_len(seq);
  return std::max<int64_t>(first_query - reach + 1, segment.begin);
}

}  // namespace

Status check_step_open(const KvView& view) {
  if (view.step.rows() == nullptr || view.step.is_open()) return {};
  return invalid_argument(
      "the view's step has ended; reserve (0 tokens to read alone) and take the view of that plan");
}

Status check_step_rows(const Segment& segment, const AttentionCall& call) {
  const KvView& view = segment.view;
  if (view.step.rows() == nullptr) return {};
  const StepRows& rows = *view.step.rows();
  const std::optional<size_t> first = place_in(view.page_indptr, rows.page_indptr);
  const std::optional<size_t> first_again = place_in(view.first_pos, rows.first_pos);
  if (!first || first != first_again || view.page_ids.data() != rows.page_ids.data() ||
      view.page_ids.size() != rows.page_ids.size()) {
    return invalid_argument(
        "page_indptr, page_ids and first_pos are not those of the view's step; a sequence reads "
        "its "
        "own blocks only");
  }
  const bool written = is_written(rows, view.step.layer());
  for (size_t b = 0; b < view.kv_len.size(); ++b) {
    const int32_t there = written ? rows.kv_len[*first + b] : rows.committed_len[*first + b];
    if (view.kv_len[b] > there) {
      return invalid_argument(
          "kv_len[" + num(static_cast<int64_t>(b)) + "] is " + num(view.kv_len[b]) +
          "; the sequence has " + num(there) + " rows in layer " + num(view.step.layer()) +
          (written ? "" : ", whose new rows are not written yet: write the layer, then attend"));
    }
    if (call.q_len(static_cast<int>(b)) == 0 || view.kv_len[b] == 0) continue;
    const int64_t oldest =
        std::max<int64_t>(oldest_seen(segment, call, b), rows.floor_pos[*first + b]);
    if (view.first_pos[b] > oldest && view.window) {
      return invalid_argument("the oldest query of sequence " + num(static_cast<int64_t>(b)) +
                              " sees keys from position " + num(oldest) + " on; those below " +
                              num(view.first_pos[b]) +
                              " left the window and were given back (raise rollback_slack)");
    }
  }
  return {};
}

}  // namespace kvik::internal
