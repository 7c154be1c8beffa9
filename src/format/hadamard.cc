#include "format/hadamard.h"

#include <algorithm>
#include <cmath>

#include "format/row_math.h"

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

std::optional<float> rotate_row(const float* row, int head_dim, float* rotated) noexcept {
  if (!all_finite(row, head_dim)) return std::nullopt;
  std::copy(row, row + head_dim, rotated);
  rotate(rotated, head_dim);
  const float squares = sum16(head_dim, [rotated](int i) { return rotated[i] * rotated[i]; });
  if (!std::isfinite(squares)) return std::nullopt;
  return squares;
}

}  // namespace kvik::internal
