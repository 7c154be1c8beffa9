#include "format/hadamard.h"

#include <array>
#include <cmath>
#include <cstring>

#include "format/lanes.h"
#include "format/row_math.h"
#include "kvik/core/check.h"
#include "kvik/format/kv_format.h"

namespace kvik::internal {
namespace {

constexpr int kSignStep = 16;

using SignTable = std::array<std::array<uint8_t, kMaxHeadDim>, kMaxHeadDim / kSignStep + 1>;

// 1 for -1: signs of element i of rows of head_dim d at [d / 16][i].
constexpr SignTable make_signs() {
  SignTable signs{};
  for (int dim = kSignStep; dim <= kMaxHeadDim; dim += kSignStep) {
    for (int i = 0; i < dim; ++i) {
      signs[static_cast<size_t>(dim / kSignStep)][static_cast<size_t>(i)] =
          is_sign_negative(dim, i);
    }
  }
  return signs;
}
constexpr SignTable kSigns = make_signs();

}  // namespace

void apply_signs(float* row, int head_dim) noexcept {
  KVIK_CHECK(head_dim % kSignStep == 0 && head_dim <= kMaxHeadDim,
             "rotated rows have multiples of 16 elements");
  const uint8_t* const signs = kSigns[static_cast<size_t>(head_dim / kSignStep)].data();
  for (int i = 0; i < head_dim; i += 4) {
    Ints4 x;
    std::memcpy(&x, row + i, sizeof x);
    x ^= (Ints4{signs[i], signs[i + 1], signs[i + 2], signs[i + 3]} << 31);
    std::memcpy(row + i, &x, sizeof x);
  }
}

void hadamard(float* row, int head_dim) noexcept {
  const int block = hadamard_block(head_dim);
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
  // Blocks are multiples of the stride, so one loop over the row serves them all.
  for (int i = 0; i < head_dim; i += 4) {
    Floats4 x = load4(row + i);
    x = __builtin_shufflevector(x, x, 0, 0, 2, 2) +
        Floats4{1, -1, 1, -1} * __builtin_shufflevector(x, x, 1, 1, 3, 3);
    x = __builtin_shufflevector(x, x, 0, 1, 0, 1) +
        Floats4{1, 1, -1, -1} * __builtin_shufflevector(x, x, 2, 3, 2, 3);
    store4(row + i, x);
  }
  for (int stride = 4; stride < block; stride *= 2) {
    for (int i = 0; i < head_dim; i += 2 * stride) {
      for (int j = i; j < i + stride; j += 4) {
        const Floats4 a = load4(row + j);
        const Floats4 b = load4(row + j + stride);
        store4(row + j, a + b);
        store4(row + j + stride, a - b);
      }
    }
  }
  for (int i = 0; i < head_dim; i += 4) store4(row + i, load4(row + i) * all4(factor));
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
  for (int i = 0; i < head_dim; ++i) rotated[i] = row[i];
  rotate(rotated, head_dim);
  const float squares = sum16(head_dim, [rotated](int i) { return rotated[i] * rotated[i]; });
  if (!std::isfinite(squares)) return std::nullopt;
  return squares;
}

}  // namespace kvik::internal
