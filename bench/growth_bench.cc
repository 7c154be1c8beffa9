// Growth of a cache by single tokens: total time beside populating the same bytes at once, the
// slowest steps, and the memory that is resident in the end.
//
//   growth_bench [--tokens=32768] [--kv-heads=8] [--dim=128] [--rounds=7]
#include <sys/mman.h>

#include <iostream>

#include "bench/harness.h"
#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/paged_cache.h"
#include "support/random.h"

namespace kvik::bench {
namespace {

struct Growth {
  double seconds = 0;
  std::vector<double> steps;  // seconds of each append
  double resident_share = 0;  // of the payload
};

// One token at a time into a cache whose blocks are all backed before (`prepared`) or as they are
// needed.
Growth append_all(const KvSpec& spec, int num_tokens, bool prepared,
                  const std::shared_ptr<Backend>& backend, const std::vector<float>& row) {
  PagedCacheOptions options;
  options.spec = spec;
  options.max_blocks = num_tokens / options.block_size + 1;
  options.num_blocks = prepared ? options.max_blocks : 0;
  PagedCache cache = PagedCache::create(options, backend).value();
  Sequence sequence = cache.new_sequence();
  const AppendRequest request{&sequence, 1};
  const ConstTensorView k(row.data(), DType::bf16, {1, spec.num_kv_heads, spec.head_dim_k});
  Growth growth;
  growth.steps.reserve(static_cast<size_t>(num_tokens));
  double before = seconds_now();
  const double start = before;
  for (int i = 0; i < num_tokens; ++i) {
    AppendPlan plan = cache.reserve({&request, 1}).value();
    cache.write(plan, 0, k, k);
    KVIK_CHECK(cache.commit(std::move(plan)).ok(), "commit failed");
    const double now = seconds_now();
    growth.steps.push_back(now - before);
    before = now;
  }
  growth.seconds = seconds_now() - start;
  const CacheStats stats = cache.stats();
  growth.resident_share = static_cast<double>(stats.resident_bytes) /
                          static_cast<double>(token_bytes(spec) * num_tokens);
  return growth;
}

// Seconds to back `bytes` bytes with memory in one call: by the system's base pages, as a growing
// run is backed until it is large, or by huge pages, as Buffer does when it may.
double populate_base_pages(int64_t bytes) {
  const double start = seconds_now();
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  const double seconds = seconds_now() - start;
  KVIK_CHECK(memory != MAP_FAILED, "no memory");
  munmap(memory, static_cast<size_t>(bytes));
  return seconds;
}

double populate_huge_pages(int64_t bytes) {
  Buffer buffer = Buffer::reserve(bytes).value();
  const double start = seconds_now();
  KVIK_CHECK(buffer.commit(bytes).ok(), "commit failed");
  return seconds_now() - start;
}

int main_of(int argc, char** argv) {
  const int num_tokens = int_option(argc, argv, "tokens", 32768);
  const int num_kv_heads = int_option(argc, argv, "kv-heads", 8);
  const int head_dim = int_option(argc, argv, "dim", 128);
  const int rounds = int_option(argc, argv, "rounds", 7);
  const KvSpec spec{num_kv_heads, head_dim, head_dim, {{KvCode::bf16, KvCode::bf16}}};
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  const std::vector<float> row = test::bell(3, int64_t{num_kv_heads} * head_dim);
  const int64_t payload = token_bytes(spec) * num_tokens;
  std::vector<double> growing, prepared, base, huge, over_base, over_huge, slowest, quick, resident;
  for (int round = 0; round < rounds; ++round) {
    base.push_back(populate_base_pages(payload) * 1e3);
    huge.push_back(populate_huge_pages(payload) * 1e3);
    prepared.push_back(append_all(spec, num_tokens, true, backend, row).seconds * 1e3);
    Growth growth = append_all(spec, num_tokens, false, backend, row);
    std::sort(growth.steps.begin(), growth.steps.end());
    const auto within = std::upper_bound(growth.steps.begin(), growth.steps.end(), 1e-3);
    growing.push_back(growth.seconds * 1e3);
    over_base.push_back(growing.back() / base.back());
    over_huge.push_back(growing.back() / huge.back());
    slowest.push_back(growth.steps.back() * 1e3);
    quick.push_back(static_cast<double>(within - growth.steps.begin()) / num_tokens);
    resident.push_back(growth.resident_share);
  }
  const nlohmann::json report = {
      {"benchmark", "growth"},
      {"cpu", describe(detect_cpu_features())},
      {"tokens", num_tokens},
      {"payload_bytes", payload},
      {"appends_ms", summary(growing)},
      {"appends_into_prepared_blocks_ms", summary(prepared)},
      {"populate_base_pages_ms", summary(base)},
      {"populate_huge_pages_ms", summary(huge)},
      {"appends_over_populate_base", summary(over_base)},
      {"appends_over_populate_huge", summary(over_huge)},
      {"slowest_step_ms", summary(slowest)},
      {"share_of_steps_within_1_ms", summary(quick)},
      {"resident_over_payload", summary(resident)},
  };
  std::cout << report.dump(2) << std::endl;
  return 0;
}

}  // namespace
}  // namespace kvik::bench

int main(int argc, char** argv) { return kvik::bench::main_of(argc, argv); }
