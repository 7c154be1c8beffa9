// Attention over plain arrays: two sequences of different lengths, two query heads per KV head.
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "kvik/backend/cpu_backend.h"

int main() {
  constexpr int kHeads = 4, kKvHeads = 2, kDim = 64;
  // Keys and values of both sequences, one after the other: [tokens][KV heads][dim].
  const std::vector<int32_t> kv_len = {5, 3};
  const std::vector<int32_t> row_indptr = {0, 5, 8};
  const std::vector<int32_t> first_pos = {0, 0};
  std::vector<float> k(8 * kKvHeads * kDim), v(k.size());
  for (size_t i = 0; i < k.size(); ++i) {
    k[i] = std::sin(static_cast<float>(i));
    v[i] = std::cos(static_cast<float>(i));
  }
  // The newest two tokens of the first sequence and the newest of the second ask:
  // [queries][heads][dim].
  const std::vector<int32_t> query_indptr = {0, 2, 3};
  const std::vector<float> q(3 * kHeads * kDim, 0.1f);
  std::vector<float> out(q.size());

  const kvik::Result<kvik::KvView> view = kvik::rows_view(
      {k.data(), kvik::DType::f32, {8, kKvHeads, kDim}},
      {v.data(), kvik::DType::f32, {8, kKvHeads, kDim}}, row_indptr, kv_len, first_pos);
  if (!view.ok()) return std::printf("%s\n", view.status().to_string().c_str()), 1;

  const kvik::Segment segment{.view = view.value()};
  kvik::AttentionCall call;
  call.q = {q.data(), kvik::DType::f32, {3, kHeads, kDim}};
  call.query_indptr = query_indptr;
  call.segments = {&segment, 1};
  call.params.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  call.out = {out.data(), kvik::DType::f32, {3, kHeads, kDim}};

  kvik::CpuBackendOptions options;
  options.num_threads = 2;
  const auto backend = kvik::make_cpu_backend(options);
  if (!backend.ok()) return std::printf("%s\n", backend.status().to_string().c_str()), 1;
  const kvik::Status status = kvik::attend(**backend, call);
  if (!status.ok()) return std::printf("%s\n", status.to_string().c_str()), 1;

  std::printf("%s: the first output row begins %.4f %.4f %.4f\n",
              std::string((*backend)->name()).c_str(), out[0], out[1], out[2]);
  return 0;
}
