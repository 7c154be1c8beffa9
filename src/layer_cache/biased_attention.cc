#include "layer_cache/biased_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kvik/core/dtype.h"
#include "layer_cache/mask_runs.h"

namespace kvik::internal {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

double dot(const ConstTensorView& a, const std::byte* x, const ConstTensorView& b,
           const std::byte* y) {
  double sum = 0;
  for (int64_t d = 0; d < a.dim(2); ++d) {
    sum += double{load_float(a.dtype, x + d * dtype_bytes(a.dtype))} *
           double{load_float(b.dtype, y + d * dtype_bytes(b.dtype))};
  }
  return sum;
}

// Scores of one query of one head; minus infinity where it does not see the key.
void score(const BiasedCall& call, int64_t j, int64_t head, int64_t kv_head,
           std::vector<double>& scores) {
  const auto length = static_cast<int64_t>(scores.size());
  const int64_t position = length - call.queries.dim(0) + j;
  const int64_t window = call.params.window.value_or(std::numeric_limits<int>::max());
  for (int64_t t = 0; t < length; ++t) {
    double& s = scores[static_cast<size_t>(t)];
    s = kHidden;
    if (t <= position - window) continue;
    const double bias = mask_bias(call.mask, call.batch_row, head, j, t);
    if (bias == kHidden) continue;
    s = double{scale_of(call.params, call.queries.dim(2))} *
        dot(call.queries, call.queries.at(j, head), call.keys, call.keys.at(t, kv_head));
    const double softcap = call.params.softcap;
    if (softcap > 0) s = softcap * std::tanh(s / softcap);
    s += bias;
  }
}

}  // namespace

void attend_biased(const BiasedCall& call) {
  const int64_t num_heads = call.queries.dim(1);
  const int64_t group = num_heads / call.keys.dim(1);
  std::vector<double> scores(static_cast<size_t>(call.keys.dim(0)));
  std::vector<double> sums(static_cast<size_t>(call.out.dim(2)));
  for (int64_t j = 0; j < call.queries.dim(0); ++j) {
    for (int64_t head = 0; head < num_heads; ++head) {
      score(call, j, head, head / group, scores);
      double most = call.params.sinks.empty()
                        ? kHidden
                        : double{call.params.sinks[static_cast<size_t>(head)]};
      double total = call.params.sinks.empty() ? 0 : 1;
      const double sink = most;
      for (const double s : scores) most = std::max(most, s);
      if (total > 0) total = std::exp(sink - most);
      std::fill(sums.begin(), sums.end(), 0.0);
      for (size_t t = 0; t < scores.size(); ++t) {
        if (scores[t] == kHidden) continue;
        const double weight = std::exp(scores[t] - most);
        total += weight;
        const std::byte* value = call.values.at(static_cast<int64_t>(t), head / group);
        for (double& sum : sums) {
          sum += weight * double{load_float(call.values.dtype, value)};
          value += dtype_bytes(call.values.dtype);
        }
      }
      std::byte* out = call.out.at(j, head);
      for (const double sum : sums) {
        store_float(call.out.dtype, out, total == 0 ? 0.0f : static_cast<float>(sum / total));
        out += dtype_bytes(call.out.dtype);
      }
    }
  }
}

}  // namespace kvik::internal
