#include "eval/tally.h"

#include <algorithm>
#include <cmath>

namespace kvik::internal {

PositionBuckets::PositionBuckets(int first, int end, int most)
    : first_(first),
      end_(end),
      count_(std::min(end - first, most)),
      moments_(static_cast<size_t>(count_)) {}

void PositionBuckets::add(int position, double kld) {
  const int64_t idx = int64_t{position - first_} * count_ / (end_ - first_);
  moments_[static_cast<size_t>(idx)].add(kld);
}

std::vector<PositionDivergence> PositionBuckets::means() const {
  // The first position whose share of `count_` reaches i.
  const auto begin_of = [&](int64_t i) {
    const int64_t length = end_ - first_;
    return first_ + static_cast<int>((i * length + count_ - 1) / count_);
  };
  std::vector<PositionDivergence> all;
  for (int i = 0; i < count_; ++i) {
    all.push_back({begin_of(i), begin_of(i + 1), moments_[static_cast<size_t>(i)].mean()});
  }
  return all;
}

void Tally::add(int position, const PositionScore& score) {
  klds_.push_back(score.kld);
  kld_.add(score.kld);
  nll_.add(-score.log_probability);
  buckets_.add(position, score.kld);
  const double change = std::exp(score.log_probability) - std::exp(score.reference_log_probability);
  squares_ += change * change;
  if (score.same_top) ++num_same_top_;
}

void Tally::finish(CandidateResult& result) const {
  const auto count = static_cast<double>(klds_.size());
  result.ppl = std::exp(nll_.mean());
  result.ppl_error = result.ppl * nll_.error();
  result.mean_kld = kld_.mean();
  result.kld_error = kld_.error();
  std::vector<double> sorted = klds_;
  std::sort(sorted.begin(), sorted.end());
  result.kld_median = quantile(sorted, 0.5);
  result.kld_99 = quantile(sorted, 0.99);
  result.kld_999 = quantile(sorted, 0.999);
  result.kld_max = sorted.back();
  result.same_top = static_cast<double>(num_same_top_) / count;
  result.rms_dp = std::sqrt(squares_ / count);
  result.by_position = buckets_.means();
}

}  // namespace kvik::internal
