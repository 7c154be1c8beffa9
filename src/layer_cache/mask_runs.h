// Mask arrays as runs of visible keys: what the kernels understand.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/layer_cache/causal_mask.h"

namespace kvik::internal {

// Visible keys [begin, end).
struct KeyRun {
  int begin = 0;
  int end = 0;
  friend bool operator==(const KeyRun&, const KeyRun&) = default;
};

// Queries [first, last) of one batch row and head that see the same: `runs`, or, if `causal`, the
// keys up to their own position within `window`.
struct MaskBand {
  int64_t first = 0;
  int64_t last = 0;
  bool causal = false;
  std::optional<int> window;
  std::vector<KeyRun> runs;
};

// Errors: invalid_argument unless the array fits [batch, num_heads, q_len, kv_len].
Status check_mask(const MaskView& mask, int64_t batch, int64_t num_heads, int64_t q_len,
                  int64_t kv_len);

// Whether the mask differs from head to head.
bool is_per_head(const MaskView& mask);

// Whether every element hides its key or leaves it alone. Requires: a checked mask.
bool only_hides(const MaskView& mask);

// What the mask adds to a score: minus infinity where it hides the key, whatever number says so.
// Requires: a checked mask, indices in range.
float mask_bias(const MaskView& mask, int64_t batch_row, int64_t head, int64_t query, int64_t key);

// The bands of all queries, in order. The query j of q_len sits at position kv_len - q_len + j; of
// the keys that the array shows it sees those within `window` of that. Requires: a checked mask
// that only hides.
std::vector<MaskBand> mask_bands(const MaskView& mask, int64_t batch_row, int64_t head,
                                 int64_t q_len, int64_t kv_len, std::optional<int64_t> window);

}  // namespace kvik::internal
