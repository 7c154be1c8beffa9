#include "format/hadamard.h"

#include <cmath>

namespace kvik::internal {

void apply_signs(float* row, int head_dim) noexcept {
  for (int i = 0; i < head_dim; ++i) {
    if (is_sign_negative(head_dim, i)) row[i] = -row[i];
  }
}

void hadamard(float* row, int head_dim) noexcept {
  const int block = hadamard_block(head_dim);
  // Blocks are multiples of the stride, so one loop over the row serves them all.
  for (int stride = 1; stride < block; stride *= 2) {
    for (int i = 0; i < head_dim; i += 2 * stride) {
      for (int j = i; j < i + stride; ++j) {
        const float a = row[j];
        const float b = row[j + stride];
        row[j] = a + b;
        row[j + stride] = a - b;
      }
    }
  }
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  for (int i = 0; i < head_dim; ++i) row[i] *= factor;
}

void rotate(float* row, int head_dim) noexcept {
  apply_signs(row, head_dim);
  hadamard(row, head_dim);
}

void unrotate(float* row, int head_dim) noexcept {
  hadamard(row, head_dim);
  apply_signs(row, head_dim);
}

}  // namespace kvik::internal
