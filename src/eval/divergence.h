// How far one row of logits lies from another.
#pragma once

#include <cstdint>

namespace kvik::internal {

// A row of logits that others are compared with.
struct ReferenceRow {
  const float* logits = nullptr;
  const float* weights = nullptr;  // e^(logit - largest)
  float largest = 0;
  double sum = 0;   // of the weights
  int64_t top = 0;  // index of the largest, the first of equals

  double log_sum_exp() const;
};

// Writes the weights. Requires: count >= 1; logits and weights outlive the result.
ReferenceRow make_reference(const float* logits, int64_t count, float* weights) noexcept;

struct RowDivergence {
  double kld = 0;  // KL(reference || row), natural log; infinity where a logit is not finite
  double log_sum_exp = 0;  // of the row
  int64_t top = 0;         // as in ReferenceRow
};

// sum_i p_i (r_i - c_i) + log(sum_i p_i e^(c_i - r_i)) with p the reference's probabilities, r and
// c the logits. Written so, rows that are nearly equal lose no digits, and equal ones give 0. Sums
// are in double, element i in lane i mod 64: the same bits on any machine. Requires: `row` has as
// many logits as the reference.
RowDivergence diverge(const ReferenceRow& reference, const float* row, int64_t count) noexcept;

}  // namespace kvik::internal
