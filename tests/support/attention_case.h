// One attention call with everything it borrows, and comparisons of its outputs.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "kvik/attention/attention.h"
#include "kvik/backend/cpu_backend.h"
#include "support/random.h"
#include "support/tiled_kv.h"

namespace kvik::test {

struct Outputs {
  std::vector<float> out, lse, lse_keys;

  bool same_bits(const Outputs& other) const {
    return same(out, other.out) && same(lse, other.lse) && same(lse_keys, other.lse_keys);
  }

 private:
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
  }
};

// Queries of a batch, f32 [sum of q_lens][num_heads][head_dim_k].
struct Queries {
  std::vector<int32_t> indptr{0};
  std::vector<float> values;
  int num_heads = 1;
  int head_dim = 64;

  Queries(int heads, int dim) : num_heads(heads), head_dim(dim) {}

  void add(uint64_t seed, int q_len) {
    const std::vector<float> more = bell(seed, int64_t{q_len} * num_heads * head_dim);
    add(more);
  }
  void add(const std::vector<float>& more) {
    values.insert(values.end(), more.begin(), more.end());
    const auto row = static_cast<size_t>(num_heads * head_dim);
    indptr.push_back(indptr.back() + static_cast<int32_t>(row == 0 ? 0 : more.size() / row));
  }
  int num_queries() const { return indptr.back(); }
};

// The call with outputs sized for it. The result borrows from all arguments.
inline AttentionCall make_call(const Queries& queries, std::span<const Segment> segments,
                               const AttentionParams& params, Outputs& outputs) {
  const int64_t n = queries.num_queries();
  const int64_t head_dim_v = segments[0].view.head_dim_v;
  const auto rows = static_cast<size_t>(n * queries.num_heads);
  // A value that no kernel writes, so that an output left out shows.
  outputs.out.assign(rows * static_cast<size_t>(head_dim_v), -12345.0f);
  outputs.lse.assign(rows, -12345.0f);
  outputs.lse_keys.assign(rows, -12345.0f);
  AttentionCall call;
  call.q =
      ConstTensorView(queries.values.data(), DType::f32, {n, queries.num_heads, queries.head_dim});
  call.query_indptr = queries.indptr;
  call.segments = segments;
  call.params = params;
  call.out = TensorView(outputs.out.data(), DType::f32, {n, queries.num_heads, head_dim_v});
  call.lse = TensorView(outputs.lse.data(), DType::f32, {n, queries.num_heads});
  call.lse_keys = TensorView(outputs.lse_keys.data(), DType::f32, {n, queries.num_heads});
  return call;
}

// Tests that compare with other arithmetic want `exact`.
inline std::unique_ptr<Backend> backend_for(CpuIsa isa, int num_threads = 1,
                                            KernelSet kernel_set = KernelSet::exact) {
  CpuBackendOptions options;
  options.isa = isa;
  options.kernel_set = kernel_set;
  options.num_threads = num_threads;
  return make_cpu_backend(options).value();
}

// Largest absolute difference; a NaN or infinity on one side only is infinitely far.
template <class A, class B>
double max_difference(const std::vector<A>& a, const std::vector<B>& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(b[i]);
    if (x == y) continue;
    const double difference = std::abs(x - y);
    if (!(difference <= most)) most = std::isnan(difference) ? INFINITY : difference;
  }
  return most;
}

}  // namespace kvik::test
