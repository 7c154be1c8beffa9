// Products of activations with packed weight matrices, read as they are stored.
#pragma once

#include <cstdint>
#include <span>

#include "kvik/core/buffer.h"
#include "kvik/core/cpu_isa.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/core/thread_team.h"
#include "kvik/model/weights.h"

namespace kvik {

namespace internal {
struct FormatKernels;
}

// y = x · Wᵀ for one weight: y[n * y_stride + r] = Σ_i x[n * x_stride + i] · W[r][i].
struct WeightProduct {
  Weight weight;
  float* y = nullptr;
  int64_t y_stride = 0;  // floats from one row of y to the next; unused for one row of x
};

// Multiplies with a team of threads. The value of an output is fixed by its weight row and its row
// of x alone: each weight, decoded to f32, times its x goes by fma, in order of the column i, to
// f32 lane i mod 16; then the lanes are added in pairs (i, i+8), (i, i+4), (i, i+2), (i, i+1).
// Hence the same bits for every instruction set, number of threads, and split of a batch.
// Threads: one call at a time (scratch memory and the team are shared by the calls).
class KVIK_API MatMul {
 public:
  // For weights of at most max_cols columns. The team must outlive the object.
  // Errors: unsupported when the build lacks the instruction set; out_of_memory; invalid_argument
  // for max_cols < 1. Requires: the processor has the instruction set.
  static Result<MatMul> create(CpuIsa isa, ThreadTeam& team, int64_t max_cols);

  // Several weights times the same rows of x, in one parallel region: cheaper than one by one.
  // Allocates nothing. NaN and infinity in x pass through to the outputs of their row.
  // Requires: all weights have the same number of columns, at most max_cols; no y overlaps x or
  // another y; x_stride >= cols and y_stride >= rows when there is more than one row of x.
  void multiply(std::span<const WeightProduct> products, const float* x, int64_t x_stride,
                int64_t num_x_rows);

  void multiply(const Weight& weight, const float* x, int64_t x_stride, int64_t num_x_rows,
                float* y, int64_t y_stride);

  CpuIsa isa() const { return isa_; }

 private:
  MatMul(CpuIsa isa, ThreadTeam& team, int64_t max_cols);

  CpuIsa isa_;
  ThreadTeam* team_;
  const internal::FormatKernels* kernels_;  // indexed by WeightType
  int64_t max_cols_;
  int64_t thread_scratch_bytes_;
  Buffer scratch_;
};

}  // namespace kvik
