#include "kvik/model/matmul.h"

#include <string>

#include "kvik/core/check.h"
#include "kvik/core/checked_math.h"
#include "model/matmul_kernels.h"

namespace kvik {
namespace {

const internal::KernelSet* kernels_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::scalar:
      return internal::scalar_kernels();
    case CpuIsa::avx2:
      return internal::avx2_kernels();
    case CpuIsa::avx512:
      return internal::avx512_kernels();
  }
  return nullptr;
}

// Shares are whole tiles, so that no thread count leaves more than one partial tile.
Range tile_share(int64_t num_rows, int part, int num_parts) {
  const Range tiles = static_share(ceil_div(num_rows, internal::kTileRows), part, num_parts);
  const int64_t end = tiles.end * internal::kTileRows;
  return {tiles.begin * internal::kTileRows, end < num_rows ? end : num_rows};
}

}  // namespace

MatMul::MatMul(CpuIsa isa, ThreadTeam& team, int64_t max_cols)
    : isa_(isa), team_(&team), kernels_(kernels_of(isa)->data()), max_cols_(max_cols) {
  constexpr int64_t kPageBytes = 4096;
  const int64_t bytes = internal::scratch_floats(max_cols) * static_cast<int64_t>(sizeof(float));
  thread_scratch_bytes_ = round_up(bytes, kPageBytes);
}

Result<MatMul> MatMul::create(CpuIsa isa, ThreadTeam& team, int64_t max_cols) {
  constexpr int64_t kMostCols = int64_t{1} << 40;
  if (max_cols < 1 || max_cols > kMostCols) {
    return invalid_argument("no weight has " + std::to_string(max_cols) + " columns");
  }
  if (kernels_of(isa) == nullptr) {
    return unsupported("this build has no " + std::string(cpu_isa_name(isa)) +
                       " kernels; choose one of available_cpu_isas");
  }
  MatMul matmul(isa, team, max_cols);
  const int64_t bytes = matmul.thread_scratch_bytes_ * team.size();
  Result<Buffer> scratch = Buffer::reserve(bytes);
  if (!scratch.ok()) return scratch.status();
  if (Status s = scratch->commit(bytes); !s.ok()) return s;
  matmul.scratch_ = std::move(scratch).value();
  return matmul;
}

void MatMul::multiply(const Weight& weight, const float* x, int64_t x_stride, int64_t num_x_rows,
                      float* y, int64_t y_stride) {
  const WeightProduct product{weight, y, y_stride};
  multiply({&product, 1}, x, x_stride, num_x_rows);
}

void MatMul::multiply(std::span<const WeightProduct> products, const float* x, int64_t x_stride,
                      int64_t num_x_rows) {
  if (products.empty() || num_x_rows == 0) return;
  for (const WeightProduct& p : products) {
    KVIK_CHECK(p.weight.cols() == products[0].weight.cols(), "one x needs one number of columns");
    KVIK_CHECK(num_x_rows == 1 || p.y_stride >= p.weight.rows(), "rows of y would overlap");
  }
  const int64_t cols = products[0].weight.cols();
  KVIK_CHECK(cols <= max_cols_, "more columns than MatMul was created for");
  KVIK_CHECK(num_x_rows == 1 || (num_x_rows > 0 && x_stride >= cols), "rows of x would overlap");
  const int num_threads = team_->size();
  team_->run([&](int thread_idx) {
    auto* scratch = reinterpret_cast<float*>(scratch_.data() + thread_idx * thread_scratch_bytes_);
    for (const WeightProduct& p : products) {
      const internal::FormatKernels& kernels = kernels_[static_cast<size_t>(p.weight.type())];
      const Range rows = tile_share(p.weight.rows(), thread_idx, num_threads);
      if (num_x_rows == 1) {
        kernels.vector(p.weight, rows, x, p.y);
      } else {
        kernels.matrix(p.weight, rows, x, x_stride, num_x_rows, p.y, p.y_stride, scratch);
      }
    }
  });
}

}  // namespace kvik
