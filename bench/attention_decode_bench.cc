// Decode attention over a paged cache: how much of the DRAM read rate it reaches.
//
//   attention_decode_bench [--kv=16384] [--heads=32] [--kv-heads=8] [--dim=128] [--q=1]
//   [--format=bf16]
//                          [--threads=2] [--rounds=9] [--isa=avx2] [--beside=bf16] [--mib=512]
//                          [--block=16] [--kernels=fast]
//
// --beside: another format in the same rounds, in turns; packed formats take bf16 beside them.
// --mib: memory that the layers fill at least, less than 512 where a slow encoder must fill them.
// The cache rotates over enough layers (at least 4 and 512 MiB) that rows come from DRAM. Each
// round measures the read rate before and after, and divides by their mean.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

#include "bench/harness.h"
#include "kvik/attention/reference.h"
#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/paged_cache.h"
#include "support/random.h"

namespace kvik::bench {
namespace {

struct Config {
  int kv_len, num_heads, num_kv_heads, head_dim, q_len, num_threads, rounds, block_size;
  KvFormat format;
  int64_t min_bytes;
};

// A cache of identical layers with one sequence of kv_len random tokens.
struct FilledCache {
  PagedCache cache;
  Sequence sequence;
  int num_layers;
};

FilledCache fill(const Config& c, const std::shared_ptr<Backend>& backend) {
  PagedCacheOptions options;
  options.spec = {c.num_kv_heads, c.head_dim, c.head_dim, {c.format}};
  const int64_t layer_bytes = token_bytes(options.spec) * c.kv_len;
  const int num_layers = static_cast<int>(std::max<int64_t>(4, c.min_bytes / layer_bytes + 1));
  options.spec.layers.assign(static_cast<size_t>(num_layers), c.format);
  options.block_size = c.block_size;
  options.max_blocks = c.kv_len / options.block_size + 2;
  PagedCache cache = PagedCache::create(options, backend).value();
  Sequence sequence = cache.new_sequence();
  constexpr int kChunk = 2048;
  const std::vector<float> rows = test::bell(1, int64_t{kChunk} * c.num_kv_heads * c.head_dim * 2);
  for (int begin = 0; begin < c.kv_len; begin += kChunk) {
    const int count = std::min(kChunk, c.kv_len - begin);
    const AppendRequest request{&sequence, count};
    AppendPlan plan = cache.reserve({&request, 1}).value();
    for (int layer = 0; layer < num_layers; ++layer) {
      const size_t shift = static_cast<size_t>((begin / kChunk + layer) % 7);
      const ConstTensorView k(rows.data() + shift, DType::f32, {count, c.num_kv_heads, c.head_dim});
      const ConstTensorView v(rows.data() + rows.size() / 2 - shift, DType::f32,
                              {count, c.num_kv_heads, c.head_dim});
      cache.write(plan, layer, k, v);
    }
    KVIK_CHECK(cache.commit(std::move(plan)).ok(), "commit failed");
  }
  return {std::move(cache), std::move(sequence), num_layers};
}

// One layer's call on the filled cache.
class Decode {
 public:
  Decode(const Config& c, FilledCache& filled)
      : filled_(filled),
        queries_(test::bell(7, int64_t{c.q_len} * c.num_heads * c.head_dim)),
        out_(queries_.size()),
        indptr_{0, c.q_len} {
    const AppendRequest request{&filled.sequence, 0};
    plan_ = filled.cache.reserve({&request, 1}).value();
    call_.q = {queries_.data(), DType::f32, {c.q_len, c.num_heads, c.head_dim}};
    call_.query_indptr = indptr_;
    call_.params.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    call_.out = {out_.data(), DType::f32, {c.q_len, c.num_heads, c.head_dim}};
  }

  void run(Backend& backend, int layer) {
    segment_.view = filled_.cache.view(plan_, layer);
    call_.segments = {&segment_, 1};
    const Status status = attend(backend, call_);
    KVIK_CHECK(status.ok(), status.message().c_str());
  }

  // Relative L2 distance of the last output from double precision.
  double error() {
    const ReferenceResult reference = reference_attention(call_).value();
    double distance = 0;
    double norm = 0;
    for (size_t i = 0; i < out_.size(); ++i) {
      distance += std::pow(reference.out[i] - static_cast<double>(out_[i]), 2);
      norm += std::pow(reference.out[i], 2);
    }
    return std::sqrt(distance / norm);
  }

 private:
  FilledCache& filled_;
  std::vector<float> queries_, out_;
  std::vector<int32_t> indptr_;
  AppendPlan plan_;
  Segment segment_;
  AttentionCall call_;
};

int main_of(int argc, char** argv) {
  Config c;
  c.kv_len = int_option(argc, argv, "kv", 16384);
  c.num_heads = int_option(argc, argv, "heads", 32);
  c.num_kv_heads = int_option(argc, argv, "kv-heads", 8);
  c.head_dim = int_option(argc, argv, "dim", 128);
  c.q_len = int_option(argc, argv, "q", 1);
  c.num_threads = int_option(argc, argv, "threads", 2);
  c.rounds = int_option(argc, argv, "rounds", 9);
  c.block_size = int_option(argc, argv, "block", 16);
  const Result<KvFormat> format = parse_kv_format(text_option(argc, argv, "format", "bf16"));
  if (!format.ok()) {
    std::cerr << format.status().message() << "\n";
    return 2;
  }
  c.format = format.value();
  c.min_bytes = int64_t{int_option(argc, argv, "mib", 512)} << 20;
  const bool packs = is_packed(c.format.k) || is_packed(c.format.v);
  const std::string beside_name = text_option(argc, argv, "beside", packs ? "bf16" : "");
  CpuBackendOptions options;
  options.num_threads = c.num_threads;
  options.pin_threads = true;
  if (text_option(argc, argv, "kernels", "fast") == "exact") {
    options.kernel_set = KernelSet::exact;
  }
  const std::string isa = text_option(argc, argv, "isa", "");
  for (const CpuIsa each : available_cpu_isas(options.features)) {
    if (cpu_isa_name(each) == isa) options.isa = each;
  }
  const std::shared_ptr<Backend> backend = make_cpu_backend(options).value();
  FilledCache filled = fill(c, backend);
  Decode decode(c, filled);
  std::optional<FilledCache> beside_filled;
  std::optional<Decode> beside;
  if (!beside_name.empty()) {
    Config other = c;
    other.format = parse_kv_format(beside_name).value();
    beside_filled.emplace(fill(other, backend));
    beside.emplace(other, *beside_filled);
  }

  decode.run(*backend, 0);
  const double error = decode.error();
  // Integer kernels of packed codes round queries and weights to 1 / 16383.
  const double limit = packs ? 4e-4 : 1e-4;
  if (!(error < limit)) {
    std::cerr << "wrong result: relative error " << error << "\n";
    return 1;
  }

  ThreadTeam team = ThreadTeam::create(c.num_threads).value();
  team.pin();
  Buffer stream = Buffer::reserve(int64_t{512} << 20).value();
  KVIK_CHECK(stream.commit(int64_t{512} << 20).ok(), "no memory for the stream");
  ReadRate read_rate(team, stream);
  const double bytes =
      static_cast<double>(c.kv_len) * static_cast<double>(token_bytes(filled.cache.spec()));
  std::vector<double> rates, shares, times, beside_times, ratios;
  for (int round = 0; round < c.rounds; ++round) {
    const double before = read_rate.measure();
    const double start = seconds_now();
    for (int layer = 0; layer < filled.num_layers; ++layer) decode.run(*backend, layer);
    const double seconds = seconds_now() - start;
    const double rate = (before + read_rate.measure()) / 2;
    if (beside) {
      const double beside_start = seconds_now();
      for (int layer = 0; layer < beside_filled->num_layers; ++layer) beside->run(*backend, layer);
      beside_times.push_back((seconds_now() - beside_start) / beside_filled->num_layers * 1e3);
      ratios.push_back(beside_times.back() / (seconds / filled.num_layers * 1e3));
    }
    times.push_back(seconds / filled.num_layers * 1e3);
    rates.push_back(rate);
    shares.push_back(bytes / seconds / 1e9 / rate);
  }
  nlohmann::json report = {
      {"benchmark", "attention_decode"},
      {"cpu", describe(options.features)},
      {"backend", backend->name()},
      {"kv_len", c.kv_len},
      {"heads", {c.num_heads, c.num_kv_heads}},
      {"head_dim", c.head_dim},
      {"q_len", c.q_len},
      {"format", {kv_code_name(c.format.k), kv_code_name(c.format.v)}},
      {"threads", c.num_threads},
      {"layers", filled.num_layers},
      {"relative_error", error},
      {"ms_per_layer", summary(times)},
      {"read_rate_gb_s", summary(rates)},
      {"read_pattern",
       {{"streams", read_rate.pattern().num_streams}, {"ahead", read_rate.pattern().ahead}}},
      {"kv_gb_s", bytes / filled.num_layers / median(times) / 1e6},
      {"share_of_read_rate", summary(shares)},
  };
  if (beside) {
    report["beside"] = {{"format", beside_name},
                        {"ms_per_layer", summary(beside_times)},
                        {"times_faster", summary(ratios)}};
  }
  std::cout << report.dump(2) << std::endl;
  return 0;
}

}  // namespace
}  // namespace kvik::bench

int main(int argc, char** argv) { return kvik::bench::main_of(argc, argv); }
