#include "eval/statistics.h"

#include <cmath>
#include <limits>

#include "kvik/core/check.h"

namespace kvik::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

void Moments::add(double value) {
  ++count_;
  if (!std::isfinite(value)) {
    is_infinite_ = true;
    return;
  }
  const double distance = value - mean_;
  mean_ += distance / static_cast<double>(count_);
  squares_ += distance * (value - mean_);
}

double Moments::mean() const { return is_infinite_ ? kInfinity : mean_; }

double Moments::error() const {
  if (count_ < 2) return 0;
  const auto n = static_cast<double>(count_);
  return is_infinite_ ? kInfinity : std::sqrt(squares_ / (n - 1) / n);
}

double quantile(std::span<const double> sorted, double q) {
  KVIK_CHECK(!sorted.empty() && q >= 0 && q <= 1, "quantile() wants values and 0 <= q <= 1");
  const double place = static_cast<double>(sorted.size() - 1) * q;
  const auto below = static_cast<size_t>(place);
  const double low = sorted[below];
  const double part = place - static_cast<double>(below);
  if (part == 0 || sorted[below + 1] == low) return low;
  return low + (sorted[below + 1] - low) * part;
}

}  // namespace kvik::internal
