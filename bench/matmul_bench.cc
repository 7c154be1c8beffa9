// Products of packed weights: GB/s of weights for one row of x, beside the read rate of the same
// threads in the same round, and GFLOP/s for 512 rows. Prints JSON.
//   matmul_bench [threads=2] [rounds=7] [mebibytes=512] [instruction set: scalar|avx2|avx512]
//                [weight type, such as q4_k; all of them otherwise]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "kvik/model/matmul.h"
#include "model/weight_scales_test_util.h"

namespace {

using kvik::Buffer;
using kvik::CpuIsa;
using kvik::MatMul;
using kvik::ThreadTeam;
using kvik::Weight;
using kvik::WeightType;

// The shape of a feed-forward weight of a small model; rows of super blocks are a little longer.
constexpr int64_t kRows = 1536;
constexpr int64_t kMaxCols = 768;
int64_t cols_of(WeightType type) { return kvik::weight_block_values(type) == 256 ? kMaxCols : 576; }
constexpr int64_t kBatch = 512;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Buffer allocate(int64_t bytes) {
  Buffer buffer = Buffer::reserve(bytes).value();
  if (const kvik::Status s = buffer.commit(bytes); !s.ok()) {
    std::fprintf(stderr, "%s\n", s.to_string().c_str());
    std::exit(1);
  }
  return buffer;
}

// Random codes with scales (or values) of ordinary size.
void fill(Buffer& buffer, WeightType type, int64_t bytes) {
  std::mt19937_64 random(1);
  for (int64_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t value = random();
    std::memcpy(buffer.data() + i, &value, sizeof value);
  }
  const int64_t block = kvik::weight_row_bytes(type, kvik::weight_block_values(type)).value();
  const uint16_t scale = type == WeightType::f32 || type == WeightType::bf16 ? 0x3d01 : 0x2c01;
  for (int64_t i = 0; i + block <= bytes; i += block) {
    std::byte* p = buffer.data() + i + (type == WeightType::f32 ? 2 : 0);
    for (const int at : kvik::testing::scale_offsets(type)) {
      std::memcpy(p + at, &scale, sizeof scale);
    }
  }
}

// Bytes a second that the team reads; the sum keeps the compiler from dropping the loads.
double read_rate(ThreadTeam& team, const Buffer& buffer, int64_t bytes) {
  std::vector<uint64_t> sums(static_cast<size_t>(team.size()) * 16);
  const double start = seconds_now();
  team.run([&](int t) {
    const kvik::Range share = kvik::static_share(bytes / 8, t, team.size());
    const auto* p = reinterpret_cast<const uint64_t*>(buffer.data());
    sums[static_cast<size_t>(t) * 16] =
        std::accumulate(p + share.begin, p + share.end, uint64_t{0});
  });
  const double elapsed = seconds_now() - start;
  if (std::accumulate(sums.begin(), sums.end(), uint64_t{0}) == 1) std::puts("");
  return static_cast<double>(bytes) / elapsed;
}

struct Problem {
  WeightType type;
  std::vector<Weight> weights;
  std::vector<double> rates, shares, flops;
};

Problem make_problem(WeightType type, const Buffer& buffer, int64_t bytes) {
  Problem problem{type, {}, {}, {}, {}};
  const int64_t size = kvik::weight_row_bytes(type, cols_of(type)).value() * kRows;
  for (int64_t at = 0; at + size <= bytes; at += size) {
    const std::span<const std::byte> view(buffer.data() + at, static_cast<size_t>(size));
    problem.weights.push_back(Weight::make(type, kRows, cols_of(type), view).value());
  }
  return problem;
}

bool agrees_with_scalar(MatMul& matmul, ThreadTeam& team, const Weight& w,
                        const std::vector<float>& x) {
  MatMul scalar = MatMul::create(CpuIsa::scalar, team, kMaxCols).value();
  std::vector<float> expected(static_cast<size_t>(kRows * 5)), y(expected.size());
  scalar.multiply(w, x.data(), w.cols(), 5, expected.data(), kRows);
  matmul.multiply(w, x.data(), w.cols(), 5, y.data(), kRows);
  if (std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) != 0) return false;
  matmul.multiply(w, x.data(), w.cols(), 1, y.data(), kRows);
  return std::memcmp(y.data(), expected.data(), kRows * sizeof(float)) == 0;
}

void measure(Problem& problem, MatMul& matmul, ThreadTeam& team, const Buffer& buffer,
             int64_t bytes, const std::vector<float>& x, std::vector<float>& y) {
  const double before = read_rate(team, buffer, bytes);
  const int64_t cols = cols_of(problem.type);
  double start = seconds_now();
  for (const Weight& w : problem.weights) matmul.multiply(w, x.data(), cols, 1, y.data(), kRows);
  const double elapsed = seconds_now() - start;
  const double after = read_rate(team, buffer, bytes);
  const auto used = static_cast<double>(problem.weights.size()) *
                    static_cast<double>(problem.weights[0].num_bytes());
  problem.rates.push_back(used / elapsed);
  problem.shares.push_back(used / elapsed / ((before + after) / 2));

  constexpr int kProducts = 8;
  start = seconds_now();
  for (size_t i = 0; i < kProducts; ++i) {
    const Weight& w = problem.weights[i % problem.weights.size()];
    matmul.multiply(w, x.data(), cols, kBatch, y.data(), kRows);
  }
  problem.flops.push_back(2.0 * kProducts * static_cast<double>(kRows * cols * kBatch) /
                          (seconds_now() - start));
}

CpuIsa choose_set(const char* name) {
  const std::vector<CpuIsa> sets = kvik::available_cpu_isas(kvik::detect_cpu_features());
  if (name == nullptr) return sets.front();
  for (const CpuIsa set : sets) {
    if (kvik::cpu_isa_name(set) == name) return set;
  }
  std::fprintf(stderr, "this machine or build has no instruction set \"%s\"\n", name);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? kvik::bench::whole_number("threads", argv[1]) : 2;
  const int rounds = argc > 2 ? kvik::bench::whole_number("rounds", argv[2]) : 7;
  const int mebibytes = argc > 3 ? kvik::bench::whole_number("mebibytes", argv[3]) : 512;
  const int64_t bytes = int64_t{mebibytes} << 20;
  if (num_threads < 1 || rounds < 1 || bytes < int64_t{8} << 20) {
    std::fprintf(stderr,
                 "usage: matmul_bench [threads] [rounds] [mebibytes, 8 or more] [set] [type]\n");
    return 1;
  }
  const CpuIsa set = choose_set(argc > 4 ? argv[4] : nullptr);
  ThreadTeam team = ThreadTeam::create(num_threads).value();
  const bool pinned = team.pin();
  MatMul matmul = MatMul::create(set, team, kMaxCols).value();
  std::vector<float> x(static_cast<size_t>(kBatch * kMaxCols)),
      y(static_cast<size_t>(kBatch * kRows));
  std::mt19937 random(2);
  for (float& v : x) v = std::normal_distribution<float>()(random);

  Buffer buffer = allocate(bytes);
  std::printf(
      "{\"cpu\": \"%s\", \"set\": \"%s\", \"threads\": %d, \"pinned\": %s, \"rounds\": %d,\n"
      " \"rows\": %lld, \"weight_bytes\": %lld,\n \"types\": [",
      kvik::describe(kvik::detect_cpu_features()).c_str(),
      std::string(kvik::cpu_isa_name(set)).c_str(), num_threads, pinned ? "true" : "false", rounds,
      static_cast<long long>(kRows), static_cast<long long>(bytes));
  const char* separator = "";
  for (int t = 0; t < kvik::kNumWeightTypes; ++t) {
    const auto type = static_cast<WeightType>(t);
    if (argc > 5 && kvik::weight_type_name(type) != argv[5]) continue;
    fill(buffer, type, bytes);
    Problem problem = make_problem(type, buffer, bytes);
    if (!agrees_with_scalar(matmul, team, problem.weights[0], x)) {
      std::fprintf(stderr, "%s differs from the scalar result\n",
                   std::string(kvik::weight_type_name(type)).c_str());
      return 1;
    }
    for (int i = 0; i < rounds; ++i) measure(problem, matmul, team, buffer, bytes, x, y);
    std::printf(
        "%s\n  {\"type\": \"%s\", \"cols\": %lld, \"vector_gb_per_s\": %.2f, "
        "\"share_of_read_rate\": %.3f, "
        "\"batch_512_gflop_per_s\": %.1f}",
        separator, std::string(kvik::weight_type_name(type)).c_str(),
        static_cast<long long>(cols_of(type)), median(problem.rates) / 1e9, median(problem.shares),
        median(problem.flops) / 1e9);
    separator = ",";
  }
  std::printf("]}\n");
  return 0;
}
