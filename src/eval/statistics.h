// Means with their errors, and quantiles.
#pragma once

#include <cstdint>
#include <span>

namespace kvik::internal {

// A mean and its standard error, taking the values as independent. One value that is not finite
// makes both infinite.
class Moments {
 public:
  void add(double value);
  int64_t count() const { return count_; }
  double mean() const;  // 0 for none
  // sqrt(sum (x - mean)^2 / (n - 1) / n); 0 for fewer than two values.
  double error() const;

 private:
  int64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // of the distances from the mean
  bool is_infinite_ = false;
};

// The value at (n - 1) q in ascending order, between neighbours by a straight line. Requires:
// `sorted` ascends and is not empty, 0 <= q <= 1.
double quantile(std::span<const double> sorted, double q);

}  // namespace kvik::internal
