#include "format/level_tables.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "format/lloyd_max.h"

namespace kvik::internal {
namespace {

double density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)); }
double mass_above(double x) { return std::erfc(x / std::sqrt(2.0)) / 2; }

// Edges of cell i, the outer ones far out.
std::pair<double, double> cell(const Codebook& book, size_t i) {
  return {i == 0 ? -40.0 : double{book.boundaries[i - 1]},
          i == book.boundaries.size() ? 40.0 : double{book.boundaries[i]}};
}

TEST(LloydMax, EveryCentroidIsTheMeanOfItsCell) {
  for (const int bits : {2, 3, 4, 5, 8}) {
    const Codebook book = lloyd_max(bits);
    ASSERT_EQ(book.centroids.size(), size_t{1} << bits);
    ASSERT_EQ(book.boundaries.size(), (size_t{1} << bits) - 1);
    for (size_t i = book.centroids.size() / 2; i < book.centroids.size(); ++i) {
      const auto [low, high] = cell(book, i);
      const double mean = (density(low) - density(high)) / (mass_above(low) - mass_above(high));
      // A boundary rounded to f32 moves the mean by as much.
      EXPECT_NEAR(book.centroids[i], mean, 3e-7) << bits << " bits, cell " << i;
      EXPECT_EQ(book.centroids[i], -book.centroids[book.centroids.size() - 1 - i]);
    }
    for (size_t i = 0; i < book.boundaries.size(); ++i) {
      EXPECT_NEAR(book.boundaries[i], (book.centroids[i] + book.centroids[i + 1]) / 2,
                  2.5e-7);  // one ulp beyond 2
      EXPECT_LT(book.centroids[i], book.boundaries[i]);
      EXPECT_LT(book.boundaries[i], book.centroids[i + 1]);
    }
  }
}

// Mean squared errors of the optimal quantisers of a unit normal (Max 1960, table I, and on).
TEST(LloydMax, HasTheKnownErrorsOfAUnitNormal) {
  const std::map<int, double> known = {
      {2, 0.11748}, {3, 0.03455}, {4, 0.00950}, {5, 0.002505}, {8, 0.0000412}};
  for (const auto& [bits, want] : known) {
    const Codebook book = lloyd_max(bits);
    double error = 0;
    constexpr double kStep = 1e-4;
    for (double x = kStep / 2; x < 10; x += kStep) {
      const double c = book.centroids[cell_of(static_cast<float>(x), book.boundaries)];
      error += 2 * density(x) * (x - c) * (x - c) * kStep;
    }
    EXPECT_NEAR(error / want, 1, 6e-3) << bits;
  }
}

TEST(LloydMax, TiesGoDown) {
  const Codebook book = lloyd_max(2);
  EXPECT_EQ(cell_of(0.0f, book.boundaries), 1);
  EXPECT_EQ(cell_of(-0.0f, book.boundaries), 1);
  EXPECT_EQ(cell_of(book.boundaries[2], book.boundaries), 2);
  EXPECT_EQ(cell_of(std::nextafter(book.boundaries[2], 9.0f), book.boundaries), 3);
  EXPECT_EQ(cell_of(1e30f, book.boundaries), 3);
  EXPECT_EQ(cell_of(-1e30f, book.boundaries), 0);
}

TEST(LevelTables, AreAscendingAndTheirOwnComplement) {
  for (const int bits : {4, 3, 2}) {
    for (const LevelTable& table : {scalar_levels(bits), trellis_levels(bits)}) {
      const size_t size = table.levels.size();
      EXPECT_EQ(table.levels.back(), 127);
      for (size_t n = 0; n < size; ++n) {
        EXPECT_EQ(table.levels[n], static_cast<int8_t>(~table.levels[size - 1 - n]));
        EXPECT_EQ(level_value(table.levels[n]), -level_value(table.levels[size - 1 - n]));
        if (n > 0) {
          EXPECT_LT(table.levels[n - 1], table.levels[n]);
        }
      }
    }
    EXPECT_EQ(scalar_levels(bits).levels.size(), size_t{1} << bits);
    EXPECT_EQ(trellis_levels(bits).levels.size(), size_t{2} << bits);
  }
}

TEST(LevelTables, ScalarLevelsAreLloydMaxScaledToTheTopAndRounded) {
  for (const int bits : {4, 3, 2}) {
    const LevelTable table = scalar_levels(bits);
    const Codebook book = lloyd_max(bits);
    const double top = book.centroids.back();
    EXPECT_EQ(table.gain, static_cast<float>(127.5 / 32 / top));
    for (size_t n = book.centroids.size() / 2; n < book.centroids.size(); ++n) {
      EXPECT_EQ(table.levels[n], std::nearbyint(book.centroids[n] * 127.5 / top - 0.5)) << n;
    }
  }
}

}  // namespace
}  // namespace kvik::internal
