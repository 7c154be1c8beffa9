#include "model/layers.h"

#include <bit>
#include <cmath>

namespace kvik::internal {
namespace {

// Work on fewer floats than this takes less time than waking the team.
constexpr int64_t kParallelFloats = int64_t{1} << 14;

template <class Function>
void for_rows(ThreadTeam& team, int64_t num_rows, int64_t width, const Function& function) {
  if (num_rows * width < kParallelFloats) {
    for (int64_t n = 0; n < num_rows; ++n) function(n);
    return;
  }
  team.run([&](int thread) {
    const Range share = static_share(num_rows, thread, team.size());
    for (int64_t n = share.begin; n < share.end; ++n) function(n);
  });
}

double sum_of_squares(const float* x, int64_t width) {
  constexpr int kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(x[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (; i < width; ++i) {
    lanes[i % kLanes] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// b where the condition holds, else a: a selection that compilers do not turn into a jump, which
// would keep a loop from becoming vectors.
inline float choose(bool condition, float a, float b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(a) & ~mask) |
                              (std::bit_cast<uint32_t>(b) & mask));
}

// e^x with a relative error below 2^-22, x cut to [-87, 88]; NaN stays NaN. No calls and no
// branches, so that the compiler makes vectors of it.
inline float exp_of(float x) {
  constexpr float kLog2E = 0x1.715476p0f;
  // ln 2 in two parts: n times the first is exact for the n that occur.
  constexpr float kLn2High = 0x1.62e400p-1f;
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  // Adding it leaves the nearest integer in the low bits.
  constexpr float kRound = 0x1.8p23f;
  x = choose(x < -87.0f, x, -87.0f);
  x = choose(x > 88.0f, x, 88.0f);
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float sum = 1.0f / 5040;
  sum = sum * r + 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound);
  return sum * std::bit_cast<float>((exponent + 127) << 23);
}

}  // namespace

void rms_norm(ThreadTeam& team, const float* x, int64_t num_rows, std::span<const float> weight,
              float epsilon, float* out) {
  const auto width = static_cast<int64_t>(weight.size());
  const float* const w = weight.data();
  for_rows(team, num_rows, width, [=](int64_t n) {
    const float* const row = x + n * width;
    float* const to = out + n * width;
    const double mean = sum_of_squares(row, width) / static_cast<double>(width);
    const auto scale = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(epsilon)));
    for (int64_t i = 0; i < width; ++i) to[i] = row[i] * scale * w[i];
  });
}

void add_row(ThreadTeam& team, float* x, int64_t num_rows, std::span<const float> row) {
  if (row.empty()) return;
  const auto width = static_cast<int64_t>(row.size());
  for_rows(team, num_rows, width, [=](int64_t n) {
    for (int64_t i = 0; i < width; ++i) x[n * width + i] += row[static_cast<size_t>(i)];
  });
}

void add_to(ThreadTeam& team, float* x, const float* delta, int64_t num_rows, int64_t width) {
  for_rows(team, num_rows, width, [=](int64_t n) {
    float* const row = x + n * width;
    const float* const from = delta + n * width;
    for (int64_t i = 0; i < width; ++i) row[i] += from[i];
  });
}

void silu_times(ThreadTeam& team, float* gate, const float* up, int64_t num_rows, int64_t width) {
  for_rows(team, num_rows, width, [=](int64_t n) {
    float* const g = gate + n * width;
    const float* const u = up + n * width;
    for (int64_t i = 0; i < width; ++i) g[i] = g[i] / (1.0f + exp_of(-g[i])) * u[i];
  });
}

void gelu_times(ThreadTeam& team, float* gate, const float* up, int64_t num_rows, int64_t width) {
  constexpr float kTwiceSqrt2OverPi = 0x1.988454p0f;
  for_rows(team, num_rows, width, [=](int64_t n) {
    float* const g = gate + n * width;
    const float* const u = up + n * width;
    for (int64_t i = 0; i < width; ++i) {
      const float x = g[i];
      const float z = kTwiceSqrt2OverPi * (x + 0.044715f * x * x * x);
      g[i] = x / (1.0f + exp_of(-z)) * u[i];
    }
  });
}

void soft_cap(ThreadTeam& team, float* x, int64_t num_rows, int64_t width, float cap) {
  for_rows(team, num_rows, width, [=](int64_t n) {
    float* const row = x + n * width;
    const double limit = cap;
    for (int64_t i = 0; i < width; ++i) {
      row[i] = static_cast<float>(limit * std::tanh(static_cast<double>(row[i]) / limit));
    }
  });
}

void rotate_rows(ThreadTeam& team, float* x, int64_t num_rows, int num_heads, int head_dim,
                 RopePairs pairs, const Turns& turns) {
  const int64_t width = int64_t{num_heads} * head_dim;
  for_rows(team, num_rows, width, [=](int64_t n) {
    rotate_heads(x + n * width, num_heads, head_dim, pairs, turns.cos + n * turns.num_pairs,
                 turns.sin + n * turns.num_pairs, turns.num_pairs);
  });
}

void look_up(ThreadTeam& team, const Weight& weight, std::span<const int32_t> ids, float scale,
             float* out) {
  const int64_t width = weight.cols();
  for_rows(team, static_cast<int64_t>(ids.size()), width, [&](int64_t n) {
    float* const row = out + n * width;
    decode_row(weight, ids[static_cast<size_t>(n)], row);
    if (scale == 1) return;
    for (int64_t i = 0; i < width; ++i) row[i] *= scale;
  });
}

}  // namespace kvik::internal
