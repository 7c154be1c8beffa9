// What is gathered of one candidate while chunks are compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/divergence.h"
#include "eval/statistics.h"
#include "kvik/eval/compare.h"

namespace kvik::internal {

// Positions [first, end) of a chunk in at most `most` parts of nearly equal length.
class PositionBuckets {
 public:
  PositionBuckets(int first, int end, int most);
  void add(int position, double kld);
  std::vector<PositionDivergence> means() const;

 private:
  int first_, end_, count_;
  std::vector<Moments> moments_;
};

// One scored position.
struct PositionScore {
  double kld = 0;
  double log_probability = 0;            // of the text's next token
  double reference_log_probability = 0;  //
  bool same_top = false;
};

class Tally {
 public:
  explicit Tally(PositionBuckets buckets) : buckets_(std::move(buckets)) {}

  void add(int position, const PositionScore& score);
  // Fills what follows from the positions; at least one.
  void finish(CandidateResult& result) const;

 private:
  PositionBuckets buckets_;
  std::vector<double> klds_;
  Moments kld_;
  Moments nll_;
  double squares_ = 0;  // of the changes of p
  int64_t num_same_top_ = 0;
};

}  // namespace kvik::internal
