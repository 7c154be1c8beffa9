#include "kvik/attention/softmax_state.h"

#include <algorithm>
#include <cmath>

namespace kvik {

void SoftmaxState::merge(SoftmaxState other) {
  const float top = std::max(max, other.max);
  // Two empty states stay empty; (-inf) - (-inf) would be NaN.
  if (top == -std::numeric_limits<float>::infinity()) {
    sum += other.sum;
    return;
  }
  sum = sum * std::exp(max - top) + other.sum * std::exp(other.max - top);
  max = top;
}

float SoftmaxState::log_sum_exp() const {
  if (sum == 0.0f) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(static_cast<double>(max) + std::log(static_cast<double>(sum)));
}

}  // namespace kvik
