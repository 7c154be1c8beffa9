// A softmax over part of the keys that can be joined with another part.
#pragma once

#include <limits>

#include "kvik/core/export.h"

namespace kvik {

// max = the largest score seen, sum = sum of exp(score - max). Empty: (-infinity, 0).
// Merging the states of two disjoint key sets gives the state of their union; the outputs join with
// the same factors exp(max_i - max) * sum_i / sum (split-KV decoding, shared prefixes).
struct KVIK_API SoftmaxState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;

  void merge(SoftmaxState other);
  // log(sum exp(score)); -infinity when empty.
  float log_sum_exp() const;
};

}  // namespace kvik
