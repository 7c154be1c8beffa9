#include "layer_cache/mask_runs.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kvik/core/checked_math.h"
#include "layer_cache/mask_elements.h"

namespace kvik::internal {
namespace {

// Address of element (b, h, j, t); dimensions of size 1 stand for every index.
const std::byte* element_at(const MaskView& mask, int64_t b, int64_t h, int64_t j, int64_t t) {
  const std::array<int64_t, 4> index = {b, h, j, t};
  int64_t at = 0;
  for (int d = 0; d < mask.rank; ++d) {
    const auto i = static_cast<size_t>(d);
    const int64_t wanted = index[static_cast<size_t>(4 - mask.rank + d)];
    at += mask.shape[i] == 1 ? 0 : wanted * mask.stride[i];
  }
  return mask.data + at * mask_type_bytes(mask.type);
}

std::vector<KeyRun> runs_of(const MaskView& mask, int64_t b, int64_t h, int64_t j, int64_t begin,
                            int64_t end) {
  std::vector<KeyRun> runs;
  for (int64_t t = begin; t < end; ++t) {
    if (mask_element(mask.type, element_at(mask, b, h, j, t)) != MaskElement::visible) continue;
    if (runs.empty() || runs.back().end != t) runs.push_back({static_cast<int>(t), 0});
    runs.back().end = static_cast<int>(t + 1);
  }
  return runs;
}

// The window that makes causal queries see exactly these runs; 0: none is needed. Nothing: the mask
// is of another kind.
std::optional<int> causal_window(const std::vector<std::vector<KeyRun>>& rows, int64_t kv_len) {
  const auto q_len = static_cast<int64_t>(rows.size());
  int window = 0;
  int64_t longest_full = 0;  // of rows that reach back to key 0
  for (int64_t j = 0; j < q_len; ++j) {
    const auto& runs = rows[static_cast<size_t>(j)];
    if (runs.size() != 1 || runs[0].end != kv_len - q_len + j + 1) return std::nullopt;
    if (runs[0].begin == 0) {
      longest_full = std::max<int64_t>(longest_full, runs[0].end);
      continue;
    }
    const int length = runs[0].end - runs[0].begin;
    if (window != 0 && length != window) return std::nullopt;
    window = length;
  }
  if (window != 0 && longest_full > window) return std::nullopt;
  return window;
}

}  // namespace

Status check_mask(const MaskView& mask, int64_t batch, int64_t num_heads, int64_t q_len,
                  int64_t kv_len) {
  const std::array<int64_t, 4> wanted = {batch, num_heads, q_len, kv_len};
  if (mask.rank != 2 && mask.rank != 4) {
    return invalid_argument("a mask array has 2 or 4 dimensions, not " + std::to_string(mask.rank));
  }
  for (int d = 0; d < mask.rank; ++d) {
    const auto i = static_cast<size_t>(d);
    const int64_t want = wanted[static_cast<size_t>(4 - mask.rank + d)];
    const bool may_broadcast = d != mask.rank - 1;
    if (mask.shape[i] == want || (may_broadcast && mask.shape[i] == 1)) continue;
    return invalid_argument("the mask has " + std::to_string(mask.shape[i]) +
                            " entries in dimension " + std::to_string(d) + "; the call has " +
                            std::to_string(want));
  }
  if (mask.data == nullptr && q_len > 0 && kv_len > 0) {
    return invalid_argument("the mask array is null");
  }
  return {};
}

float mask_bias(const MaskView& mask, int64_t batch_row, int64_t head, int64_t query, int64_t key) {
  const std::byte* at = element_at(mask, batch_row, head, query, key);
  switch (mask_element(mask.type, at)) {
    case MaskElement::hidden:
      return -std::numeric_limits<float>::infinity();
    case MaskElement::visible:
      return 0;
    case MaskElement::other:
      break;
  }
  return mask_number(mask.type, at);
}

bool is_per_head(const MaskView& mask) { return mask.rank == 4 && mask.shape[1] > 1; }

bool only_hides(const MaskView& mask) {
  if (mask.type == MaskType::boolean) return true;
  std::array<int64_t, 4> n = {1, 1, 1, 1};
  for (int d = 0; d < mask.rank; ++d) {
    n[static_cast<size_t>(4 - mask.rank + d)] = mask.shape[static_cast<size_t>(d)];
  }
  for (int64_t b = 0; b < n[0]; ++b) {
    for (int64_t h = 0; h < n[1]; ++h) {
      for (int64_t j = 0; j < n[2]; ++j) {
        for (int64_t t = 0; t < n[3]; ++t) {
          if (mask_element(mask.type, element_at(mask, b, h, j, t)) == MaskElement::other) {
            return false;
          }
        }
      }
    }
  }
  return true;
}

std::vector<MaskBand> mask_bands(const MaskView& mask, int64_t batch_row, int64_t head,
                                 int64_t q_len, int64_t kv_len, std::optional<int64_t> window) {
  std::vector<std::vector<KeyRun>> rows;
  for (int64_t j = 0; j < q_len; ++j) {
    int64_t begin = 0;
    int64_t end = kv_len;
    if (window) {
      const int64_t position = kv_len - q_len + j;
      begin = std::clamp<int64_t>(position - *window + 1, 0, kv_len);
    }
    rows.push_back(runs_of(mask, batch_row, head, j, begin, end));
  }
  std::vector<MaskBand> bands;
  if (const std::optional<int> found = causal_window(rows, kv_len)) {
    bands.push_back({0, q_len, true, *found == 0 ? std::nullopt : found, {}});
    return bands;
  }
  for (int64_t j = 0; j < q_len; ++j) {
    std::vector<KeyRun>& runs = rows[static_cast<size_t>(j)];
    if (!bands.empty() && bands.back().runs == runs) {
      bands.back().last = j + 1;
    } else {
      bands.push_back({j, j + 1, false, std::nullopt, std::move(runs)});
    }
  }
  return bands;
}

}  // namespace kvik::internal
