// Copying arrays of rank 4 with any strides.
#pragma once

#include <cstdint>
#include <cstring>

#include "kvik/core/tensor_view.h"

namespace kvik::internal {

// Copies the elements of `from` to `to`. Requires: equal shapes of rank 4 and dtypes, `to` with
// stride 1 in its last dimension, no overlap.
inline void copy_rows(const ConstTensorView& from, const TensorView& to) {
  const int64_t size = dtype_bytes(from.dtype);
  const int64_t row_bytes = from.dim(3) * size;
  if (row_bytes == 0 || from.dim(2) == 0) return;
  const bool unit = from.step(3) == 1 || from.dim(3) == 1;
  const bool block =
      unit && (from.dim(2) == 1 || (from.step(2) == from.dim(3) && to.step(2) == to.dim(3)));
  for (int64_t b = 0; b < from.dim(0); ++b) {
    for (int64_t h = 0; h < from.dim(1); ++h) {
      const std::byte* source = from.at(b, h);
      std::byte* target = to.at(b, h);
      if (block) {
        std::memcpy(target, source, static_cast<size_t>(from.dim(2) * row_bytes));
        continue;
      }
      for (int64_t t = 0; t < from.dim(2); ++t) {
        if (unit) {
          std::memcpy(target, source, static_cast<size_t>(row_bytes));
        } else {
          for (int64_t d = 0; d < from.dim(3); ++d) {
            std::memcpy(target + d * size, source + d * from.step(3) * size,
                        static_cast<size_t>(size));
          }
        }
        source += from.step(2) * size;
        target += to.step(2) * size;
      }
    }
  }
}

}  // namespace kvik::internal
