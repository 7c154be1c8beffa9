// What one instruction set offers to MatMul: a pair of loops for each weight format.
#pragma once

#include <array>
#include <cstdint>

#include "kvik/core/thread_team.h"
#include "kvik/model/weights.h"

namespace kvik::internal {

// Rows of a weight that are unpacked together, and then multiplied with several rows of x.
inline constexpr int kTileRows = 4;
// As many tiles are unpacked at once as fit in this many floats (a share of the level-1 cache).
inline constexpr int64_t kTileGroupFloats = 4608;

// Floats of one unpacked tile: whole steps of 16 columns, and 16 more for the rest.
constexpr int64_t tile_floats(int64_t cols) { return kTileRows * (cols / 16 * 16 + 16); }

// Scratch of one thread for weights of at most max_cols columns.
constexpr int64_t scratch_floats(int64_t max_cols) {
  const int64_t one = tile_floats(max_cols);
  return one > kTileGroupFloats ? one : kTileGroupFloats;
}

struct FormatKernels {
  // y[r] for the weight rows r of the range.
  void (*vector)(const Weight& w, Range rows, const float* x, float* y) noexcept;
  // y[n * y_stride + r] for the weight rows r of the range and all rows n of x.
  void (*matrix)(const Weight& w, Range rows, const float* x, int64_t x_stride, int64_t num_x_rows,
                 float* y, int64_t y_stride, float* scratch) noexcept;
};

// In the order of WeightType.
using KernelSet = std::array<FormatKernels, kNumWeightTypes>;

const KernelSet* scalar_kernels();
// nullptr when the build left them out.
const KernelSet* avx2_kernels();
const KernelSet* avx512_kernels();

}  // namespace kvik::internal
