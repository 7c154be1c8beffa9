#include "eval/divergence.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace kvik::internal {
namespace {

// Rows are read in blocks of so many elements, by loops that each do one simple thing to a whole
// block: compilers make vector code of those, for the plainest instruction set too.
constexpr size_t kLanes = 64;
using Block = std::array<double, kLanes>;

// Where a difference of logits is larger, the weight beside it may have lost its digits.
constexpr double kLargeDifference = 40;
constexpr double kExpLimit = 700;

// In a fixed order.
double sum(Block x) {
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) x[i] += x[i + half];
  }
  return x[0];
}

// e^x = power (1 + rest).
struct Exponential {
  double power;  // of two
  double rest;   // -0.3 to 0.42

  double value() const { return power + power * rest; }
  // e^x - 1, exact to the last digits near 0 too.
  double minus_one() const { return power * rest + (power - 1); }
};

// x = k ln 2 + r with k whole and |r| <= ln 2 / 2; e^r - 1 from its series, relative error below
// 1e-14. Requires: |x| <= kExpLimit, or NaN, which stays NaN.
inline Exponential exponential(double x) {
  constexpr double kLog2e = 1.4426950408889634;
  constexpr double kLn2High = 0x1.62e42fee00000p-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  // Adding it leaves k + 1023, the biased exponent of 2^k, in the lowest bits.
  constexpr double kShift = 0x1.8p52 + 1023;
  const double shifted = x * kLog2e + kShift;
  const double k = shifted - kShift;
  const double power = std::bit_cast<double>(std::bit_cast<uint64_t>(shifted) << 52);
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double p = 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  return {power, p * r};
}

void limit(Block& x) {
  for (size_t i = 0; i < kLanes; ++i) x[i] = -kExpLimit > x[i] ? -kExpLimit : x[i];
  for (size_t i = 0; i < kLanes; ++i) x[i] = kExpLimit < x[i] ? kExpLimit : x[i];
}

// Elements [begin, begin + kLanes) of a row, `fill` where it has ended.
using FloatBlock = std::array<float, kLanes>;
FloatBlock load(const float* x, int64_t begin, int64_t count, float fill) {
  FloatBlock block;
  if (count - begin >= static_cast<int64_t>(kLanes)) {
    std::copy_n(x + begin, kLanes, block.begin());
  } else {
    block.fill(fill);
    std::copy_n(x + begin, count - begin, block.begin());
  }
  return block;
}

// The largest of the numbers; what is not a number is passed over.
float largest_of(const float* x, int64_t count) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  FloatBlock most;
  most.fill(kLeast);
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    const FloatBlock block = load(x, begin, count, kLeast);
    for (size_t i = 0; i < kLanes; ++i) most[i] = block[i] > most[i] ? block[i] : most[i];
  }
  return *std::max_element(most.begin(), most.end());
}

int64_t first_index_of(const float* x, int64_t count, float value) {
  const int64_t idx = std::find(x, x + count, value) - x;
  return idx < count ? idx : 0;
}

// e^(x - largest) of a block of a row; 0 where the row has ended.
Block weights_of(const float* x, int64_t begin, int64_t count, float largest) {
  const FloatBlock block = load(x, begin, count, 0);
  Block weights;
  for (size_t i = 0; i < kLanes; ++i) {
    weights[i] = static_cast<double>(block[i]) - static_cast<double>(largest);
  }
  limit(weights);
  for (double& weight : weights) weight = exponential(weight).value();
  for (auto i = static_cast<size_t>(count - begin); i < kLanes; ++i) weights[i] = 0;
  return weights;
}

// log(sum e^(x[i])), for rows whose largest element is known.
double log_sum_exp_of(const float* x, int64_t count, float largest) {
  Block sums = {};
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    const Block weights = weights_of(x, begin, count, largest);
    for (size_t i = 0; i < kLanes; ++i) sums[i] += weights[i];
  }
  return static_cast<double>(largest) + std::log(sum(sums));
}

// Sums over a row, before division by the sum of weights.
struct Sums {
  Block differences = {};   // w (c - r)
  Block exponentials = {};  // w (e^(c - r) - 1)
  Block largest = {};       // of c - r

  void add(const FloatBlock& weight, const FloatBlock& reference, const FloatBlock& row) {
    Block w;
    Block x;
    for (size_t i = 0; i < kLanes; ++i) w[i] = static_cast<double>(weight[i]);
    for (size_t i = 0; i < kLanes; ++i) {
      x[i] = static_cast<double>(row[i]) - static_cast<double>(reference[i]);
    }
    for (size_t i = 0; i < kLanes; ++i) differences[i] += w[i] * x[i];
    for (size_t i = 0; i < kLanes; ++i) largest[i] = x[i] > largest[i] ? x[i] : largest[i];
    limit(x);
    for (size_t i = 0; i < kLanes; ++i) exponentials[i] += w[i] * exponential(x[i]).minus_one();
  }
};

}  // namespace

double ReferenceRow::log_sum_exp() const { return static_cast<double>(largest) + std::log(sum); }

ReferenceRow make_reference(const float* logits, int64_t count, float* weights) noexcept {
  ReferenceRow row;
  row.logits = logits;
  row.weights = weights;
  row.largest = largest_of(logits, count);
  row.top = first_index_of(logits, count, row.largest);
  Block sums = {};
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    const Block exact = weights_of(logits, begin, count, row.largest);
    FloatBlock rounded;
    for (size_t i = 0; i < kLanes; ++i) rounded[i] = static_cast<float>(exact[i]);
    // The probabilities are those of the rounded weights, so that they add up to 1.
    for (size_t i = 0; i < kLanes; ++i) sums[i] += static_cast<double>(rounded[i]);
    std::copy_n(rounded.begin(), std::min<int64_t>(kLanes, count - begin), weights + begin);
  }
  row.sum = sum(sums);
  return row;
}

RowDivergence diverge(const ReferenceRow& reference, const float* row, int64_t count) noexcept {
  Sums sums;
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    sums.add(load(reference.weights, begin, count, 0), load(reference.logits, begin, count, 0),
             load(row, begin, count, 0));
  }
  RowDivergence result;
  const float largest = largest_of(row, count);
  result.top = first_index_of(row, count, largest);
  const double mean_difference = sum(sums.differences) / reference.sum;
  double log_ratio = std::log1p(sum(sums.exponentials) / reference.sum);
  if (*std::max_element(sums.largest.begin(), sums.largest.end()) > kLargeDifference) {
    log_ratio = log_sum_exp_of(row, count, largest) - reference.log_sum_exp();
  }
  result.log_sum_exp = reference.log_sum_exp() + log_ratio;
  // At least 0 but for rounding, by Jensen's inequality; what is not finite is no small divergence.
  const double kld = log_ratio - mean_difference;
  result.kld = std::isfinite(kld) ? std::max(kld, 0.0) : std::numeric_limits<double>::infinity();
  return result;
}

}  // namespace kvik::internal
