// What one instruction set offers to MatMul: a pair of loops for each weight format.
#pragma once

#include <array>
#include <cstdint>

#include "kvik/core/thread_team.h"
#include "kvik/model/weights.h"

namespace kvik::internal {

// Rows of a weight that are unpacked together, and then multiplied with several rows of x.
inline constexpr int kTileRows = 4;
// Tiles that are unpacked together; each run of x rows is read once for all of them.
inline constexpr int64_t kGroupTiles = 2;
// Steps of 16 columns that are multiplied in one go: the tiles' share and that of a few rows of x
// fit the level-1 cache.
inline constexpr int64_t kMaxChunkSteps = 40;

// Floats of one unpacked tile: whole steps of 16 columns, and 16 more for the rest.
constexpr int64_t tile_floats(int64_t cols) { return kTileRows * (cols / 16 * 16 + 16); }

// Rows of x that stay in the level-2 cache while the tiles pass by; a multiple of every kTileX.
constexpr int64_t x_block_rows(int64_t cols) {
  constexpr int64_t kBlockFloats = 49152;
  const int64_t rows = kBlockFloats / cols / 6 * 6;
  return rows < 24 ? 24 : rows > 96 ? 96 : rows;
}

// Scratch of one thread for weights of at most max_cols columns: a group of tiles, and the lanes of
// the outputs of a block.
constexpr int64_t scratch_floats(int64_t max_cols) {
  return kGroupTiles * (tile_floats(max_cols) + int64_t{96} * kTileRows * 16);
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
