// Row-wise parts of a layer at every width: the floats behind a row, and those of the vector that a
// row does not fill, never count.
#include "model/layers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/random.h"

namespace kvik::internal {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kRows = 3;

// Three rows of `width`, then NaN.
std::vector<float> rows(uint64_t seed, size_t width) {
  std::vector<float> x = test::bell(seed, static_cast<int64_t>(kRows * width));
  x.resize(x.size() + 32, kNan);
  return x;
}

void expect_guard(const std::vector<float>& x, size_t size) {
  for (size_t i = size; i < x.size(); ++i) ASSERT_TRUE(std::isnan(x[i])) << "wrote past the rows";
}

class Layers : public testing::Test {
 protected:
  ThreadTeam team_ = ThreadTeam::create(1).value();
};

TEST_F(Layers, NormsOfEveryWidthCountTheirOwnValuesOnce) {
  for (size_t width = 1; width <= 67; ++width) {
    std::vector<float> x = rows(width, width);
    // One value that outweighs the others, at each place in turn.
    for (size_t place = 0; place < width; ++place) {
      std::vector<float> spiked = x;
      spiked[width + place] = 100;
      const std::vector<float> weight = test::bell(7, static_cast<int64_t>(width));
      std::vector<float> out(spiked.size(), kNan);
      rms_norm(team_, spiked.data(), kRows, weight, 1e-5f, out.data());
      for (size_t n = 0; n < kRows; ++n) {
        double squares = 0;
        for (size_t i = 0; i < width; ++i) squares += std::pow(double{spiked[n * width + i]}, 2);
        const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
        for (size_t i = 0; i < width; ++i) {
          const double expected = spiked[n * width + i] * scale * double{weight[i]};
          ASSERT_NEAR(double{out[n * width + i]}, expected, 1e-6 * (1 + std::abs(expected)));
        }
      }
      expect_guard(out, kRows * width);
    }
  }
}

TEST_F(Layers, ActivationsOfEveryWidthAreThoseOfTheFormulas) {
  for (size_t width = 1; width <= 67; ++width) {
    std::vector<float> gate = rows(width, width);
    for (size_t i = 0; i < kRows * width; ++i) gate[i] *= 4;
    const std::vector<float> up = rows(100 + width, width);
    std::vector<float> silu = gate, gelu = gate;
    silu_times(team_, silu.data(), up.data(), kRows, static_cast<int64_t>(width));
    gelu_times(team_, gelu.data(), up.data(), kRows, static_cast<int64_t>(width));
    for (size_t i = 0; i < kRows * width; ++i) {
      const double x = gate[i];
      const double z = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
      ASSERT_NEAR(double{silu[i]}, x / (1 + std::exp(-x)) * up[i], 1e-5) << x;
      ASSERT_NEAR(double{gelu[i]}, 0.5 * x * (1 + std::tanh(z)) * up[i], 1e-5) << x;
    }
    expect_guard(silu, kRows * width);
    expect_guard(gelu, kRows * width);
  }
}

TEST_F(Layers, ActivationsOfVeryLargeValuesAreTheirLimits) {
  for (const float size : {90.0f, 1e4f, 1e30f}) {
    std::vector<float> silu = {size, -size}, gelu = silu;
    const std::vector<float> up = {1, 1};
    silu_times(team_, silu.data(), up.data(), 1, 2);
    gelu_times(team_, gelu.data(), up.data(), 1, 2);
    EXPECT_EQ(silu[0], size);
    EXPECT_EQ(gelu[0], size);
    EXPECT_LE(std::abs(silu[1]), size * 1e-37f);
    EXPECT_LE(std::abs(gelu[1]), size * 1e-37f);
  }
}

}  // namespace
}  // namespace kvik::internal
