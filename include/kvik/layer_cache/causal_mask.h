// The masks that the one-layer caches hand out, and the masks that they take.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvik/core/dtype.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// Element types of mask arrays. boolean: one byte, non-zero = the key is visible. The others are
// added to the scores: 0 = visible, minus infinity or the type's lowest finite value = hidden.
enum class MaskType : uint8_t { boolean, f32, f16, bf16 };

constexpr int64_t mask_type_bytes(MaskType type) {
  return type == MaskType::boolean ? 1 : type == MaskType::f32 ? 4 : 2;
}

// none: nothing needs hiding; causal: query at position p sees the keys at positions <= p; array:
// as `data` says.
enum class MaskKind : uint8_t { none, causal, array };

// A mask that owns its elements, row-major [num_rows, num_cols]; rows are queries, columns keys.
struct CausalMask {
  MaskKind kind = MaskKind::none;
  MaskType type = MaskType::boolean;
  int64_t num_rows = 0;
  int64_t num_cols = 0;
  std::vector<std::byte> data;  // empty unless kind is array

  bool visible(int64_t row, int64_t col) const;
};

// The mask for `num_queries` queries that follow `offset` cached rows, in mlx-lm's form:
//   with a window: always a boolean array [N, offset + N], true where q >= k and q < k + window
//   else, N = 1: none; return_array: the array without a window; otherwise causal.
// Errors: invalid_argument for N < 1, a negative offset or a window below 1.
KVIK_API Result<CausalMask> make_causal_mask(int64_t num_queries, int64_t offset, bool return_array,
                                             std::optional<int64_t> window);

// The mask as an array [query_len, key_len] of the wanted type: the queries are the newest
// query_len of key_len positions. Errors: invalid_argument unless 1 <= query_len <= key_len.
KVIK_API Result<CausalMask> make_mask_array(int64_t query_len, int64_t key_len, MaskType type);

// A borrowed mask array: rank 2 [q_len, kv_len] or rank 4 [B or 1, H or 1, q_len or 1, kv_len];
// strides count elements.
struct MaskView {
  const std::byte* data = nullptr;
  MaskType type = MaskType::boolean;
  int rank = 0;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> stride{};
};

// Borrows. Requires: kind array.
KVIK_API MaskView mask_view(const CausalMask& mask);

}  // namespace kvik
