// Random weights and the product rule spelled out, for the tests of MatMul.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "kvik/model/weights.h"
#include "model/weight_scales_test_util.h"

namespace kvik::testing {

// Owns the bytes of a random weight; all values are finite and of ordinary size.
struct RandomWeight {
  std::vector<std::byte> bytes;
  Weight weight;

  RandomWeight(WeightType type, int64_t rows, int64_t cols, uint32_t seed) {
    std::mt19937 random(seed);
    const int64_t row_bytes = weight_row_bytes(type, cols).value();
    bytes.resize(static_cast<size_t>(rows * row_bytes));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    for_each_scale(type, [&random](std::byte* p, bool is_f32) {
      // Exponents near that of 1: the top bits of the number are replaced.
      const auto top = static_cast<uint16_t>(random() & 0x83ffu);
      const auto f16 = static_cast<uint16_t>(0x2c00u | top);
      const auto upper = static_cast<uint16_t>(0x3d80u | (random() & 0x80ffu));
      std::memcpy(p, is_f32 ? &upper : &f16, sizeof f16);
    });
    weight = Weight::make(type, rows, cols, bytes).value();
  }

 private:
  template <class Function>
  void for_each_scale(WeightType type, Function set) {
    const auto block =
        static_cast<size_t>(weight_row_bytes(type, weight_block_values(type)).value());
    const bool is_f32 = type == WeightType::f32 || type == WeightType::bf16;
    for (size_t at = 0; at < bytes.size(); at += block) {
      for (const int offset : scale_offsets(type)) {
        set(bytes.data() + at + offset + (type == WeightType::f32 ? 2 : 0), is_f32);
      }
    }
  }
};

inline std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

// One output by the rule of MatMul, written down a second time.
inline float product_by_rule(std::span<const float> w, const float* x) {
  float lane[16] = {};
  for (size_t i = 0; i < w.size(); ++i) lane[i % 16] = std::fma(w[i], x[i], lane[i % 16]);
  float a[8], b[4], c[2];
  for (int i = 0; i < 8; ++i) a[i] = lane[i] + lane[i + 8];
  for (int i = 0; i < 4; ++i) b[i] = a[i] + a[i + 4];
  for (int i = 0; i < 2; ++i) c[i] = b[i] + b[i + 2];
  return c[0] + c[1];
}

inline std::vector<float> decoded(const Weight& w) {
  std::vector<float> values(static_cast<size_t>(w.rows() * w.cols()));
  for (int64_t r = 0; r < w.rows(); ++r) decode_row(w, r, values.data() + r * w.cols());
  return values;
}

// y[n][r] by the rule, rows of x and y without gaps.
inline std::vector<float> products_by_rule(const Weight& w, const std::vector<float>& x,
                                           int64_t num_x_rows) {
  const std::vector<float> values = decoded(w);
  std::vector<float> y;
  for (int64_t n = 0; n < num_x_rows; ++n) {
    for (int64_t r = 0; r < w.rows(); ++r) {
      const std::span<const float> row(values.data() + r * w.cols(), static_cast<size_t>(w.cols()));
      y.push_back(product_by_rule(row, x.data() + n * w.cols()));
    }
  }
  return y;
}

// Equality of bits: NaN equals itself, zeros differ by sign.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace kvik::testing
