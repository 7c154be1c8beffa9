#include "kvik/layer_cache/causal_mask.h"

#include <cmath>
#include <cstring>
#include <string>

#include "kvik/core/checked_math.h"
#include "layer_cache/mask_elements.h"

namespace kvik {
namespace {

void store(MaskType type, bool visible, std::byte* to) {
  switch (type) {
    case MaskType::boolean:
      *to = std::byte{visible};
      return;
    case MaskType::f32: {
      const float x = visible ? 0.0f : -3.40282347e38f;
      std::memcpy(to, &x, sizeof x);
      return;
    }
    case MaskType::f16:
    case MaskType::bf16: {
      const uint16_t lowest = type == MaskType::f16 ? 0xfbff : 0xff7f;
      const uint16_t bits = visible ? 0 : lowest;
      std::memcpy(to, &bits, sizeof bits);
      return;
    }
  }
}

// Row i is the query at position `first + i`.
Result<CausalMask> fill(int64_t rows, int64_t cols, int64_t first, int64_t window, MaskType type) {
  const auto bytes = checked_product({rows, cols, mask_type_bytes(type)});
  if (!bytes) return invalid_argument("a mask of " + std::to_string(rows) + " rows is too large");
  CausalMask mask{MaskKind::array, type, rows, cols, {}};
  mask.data.resize(static_cast<size_t>(*bytes));
  std::byte* to = mask.data.data();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = first + row;
    for (int64_t key = 0; key < cols; ++key, to += mask_type_bytes(type)) {
      store(type, key <= position && position - key < window, to);
    }
  }
  return mask;
}

}  // namespace

Result<CausalMask> make_causal_mask(int64_t num_queries, int64_t offset, bool return_array,
                                    std::optional<int64_t> window) {
  if (num_queries < 1 || offset < 0 || (window && *window < 1)) {
    return invalid_argument(
        "a mask needs at least one query, an offset of 0 or more and a window "
        "of at least 1");
  }
  const auto cols = checked_sum({offset, num_queries});
  if (!cols) return invalid_argument("the offset is too large for a mask");
  if (window || (return_array && num_queries > 1)) {
    return fill(num_queries, *cols, offset, window.value_or(INT64_MAX), MaskType::boolean);
  }
  CausalMask mask;
  mask.kind = num_queries == 1 ? MaskKind::none : MaskKind::causal;
  mask.num_rows = num_queries;
  mask.num_cols = *cols;
  return mask;
}

Result<CausalMask> make_mask_array(int64_t query_len, int64_t key_len, MaskType type) {
  if (query_len < 1 || query_len > key_len) {
    return invalid_argument("query_len " + std::to_string(query_len) +
                            " must lie in 1 to key_len " + std::to_string(key_len));
  }
  return fill(query_len, key_len, key_len - query_len, INT64_MAX, type);
}

bool CausalMask::visible(int64_t row, int64_t col) const {
  if (kind == MaskKind::none) return true;
  if (kind == MaskKind::causal) return col <= num_cols - num_rows + row;
  const std::byte* at = data.data() + (row * num_cols + col) * mask_type_bytes(type);
  return internal::mask_element(type, at) == internal::MaskElement::visible;
}

MaskView mask_view(const CausalMask& mask) {
  MaskView view;
  view.data = mask.data.data();
  view.type = mask.type;
  view.rank = 2;
  view.shape = {mask.num_rows, mask.num_cols};
  view.stride = {mask.num_cols, 1};
  return view;
}

}  // namespace kvik
