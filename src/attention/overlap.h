// Whether two arrays of rows may lie over each other in memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvik/core/tensor_view.h"
#include "kvik/format/kv_view.h"

namespace kvik::internal {

// Rows of `row_bytes` bytes at begin + i * step[0] + j * step[1], i < count[0], j < count[1]; steps
// in bytes, not negative.
struct RowGrid {
  const std::byte* begin = nullptr;
  std::array<int64_t, 2> count{};
  std::array<int64_t, 2> step{};
  int64_t row_bytes = 0;
};

// Of a tensor of 2 dimensions (rows of one element) or 3 (last stride 1).
RowGrid grid_of(const ConstTensorView& tensor);
// Of the keys, or the values, of a checked view.
RowGrid grid_of_k(const KvView& view);
RowGrid grid_of_v(const KvView& view);

template <class T>
RowGrid grid_of(std::span<const T> array) {
  return {reinterpret_cast<const std::byte*>(array.data()),
          {1, 1},
          {},
          static_cast<int64_t>(array.size_bytes())};
}

// False only where no byte belongs to both. Rows of one buffer that never meet are told apart where
// their steps agree: columns of a joint [tokens, q | k | v | out] array, heads side by side.
bool may_overlap(const RowGrid& a, const RowGrid& b);

}  // namespace kvik::internal
