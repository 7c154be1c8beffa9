#include "kvik/model/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "model/exact_exp.h"

namespace kvik {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// How many tokens are put in order at first when nothing says how many will be needed.
constexpr size_t kFirstSorted = 128;

Status check_params(const SamplerParams& p, int vocab_size) {
  const auto wrong = [](const char* name, const std::string& value, const char* range) {
    return invalid_argument(std::string(name) + " is " + value + "; it must be " + range);
  };
  if (vocab_size <= 0) return wrong("vocab_size", std::to_string(vocab_size), "above 0");
  // Written so that NaN fails.
  if (!(p.repeat_penalty > 0 && std::isfinite(p.repeat_penalty))) {
    return wrong("repeat_penalty", std::to_string(p.repeat_penalty), "above 0 and finite");
  }
  if (p.repeat_last_n < 0) return wrong("repeat_last_n", std::to_string(p.repeat_last_n), ">= 0");
  if (p.repeat_penalty != 1 && p.repeat_last_n == 0) {
    return invalid_argument("repeat_penalty has no effect with repeat_last_n 0; set one of them");
  }
  if (p.top_k && *p.top_k < 1) return wrong("top_k", std::to_string(*p.top_k), "at least 1");
  if (!(p.top_p > 0 && p.top_p <= 1)) {
    return wrong("top_p", std::to_string(p.top_p), "above 0 and at most 1");
  }
  if (!(p.min_p >= 0 && p.min_p <= 1)) {
    return wrong("min_p", std::to_string(p.min_p), "between 0 and 1");
  }
  if (!(p.temperature >= 0 && std::isfinite(p.temperature))) {
    return wrong("temperature", std::to_string(p.temperature), "0 or more, and finite");
  }
  return {};
}

uint64_t split_mix(uint64_t& state) {
  state += 0x9E3779B97F4A7C15U;
  uint64_t z = state;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
  z = (z ^ z >> 27) * 0x94D049BB133111EBU;
  return z ^ z >> 31;
}

}  // namespace

Random::Random(uint64_t seed) : state_{} {
  for (uint64_t& word : state_) word = split_mix(seed);
}

uint64_t Random::next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

double Random::next_unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

Sampler::Sampler(const SamplerParams& params, int vocab_size)
    : params_(params),
      random_(params.seed),
      logits_(static_cast<size_t>(vocab_size)),
      sorted_(static_cast<size_t>(vocab_size)),
      occurrences_(static_cast<size_t>(vocab_size), 0) {
  if (params.repeat_penalty != 1) history_.resize(static_cast<size_t>(params.repeat_last_n));
}

Result<Sampler> Sampler::create(const SamplerParams& params, int vocab_size) {
  if (Status status = check_params(params, vocab_size); !status.ok()) return status;
  return Sampler(params, vocab_size);
}

Status Sampler::accept(TokenId token) {
  if (token < 0 || static_cast<size_t>(token) >= logits_.size()) {
    return invalid_argument("token id " + std::to_string(token) + " is outside the vocabulary of " +
                            std::to_string(logits_.size()) + " tokens");
  }
  if (history_.empty()) return {};
  if (history_size_ == history_.size()) {
    --occurrences_[static_cast<size_t>(history_[history_next_])];
  } else {
    ++history_size_;
  }
  history_[history_next_] = token;
  ++occurrences_[static_cast<size_t>(token)];
  history_next_ = (history_next_ + 1) % history_.size();
  return {};
}

void Sampler::reset() {
  random_ = Random(params_.seed);
  history_size_ = 0;
  history_next_ = 0;
  std::fill(occurrences_.begin(), occurrences_.end(), 0);
}

Status Sampler::load(std::span<const float> logits) {
  if (logits.size() != logits_.size()) {
    return invalid_argument(std::to_string(logits.size()) + " logits for a vocabulary of " +
                            std::to_string(logits_.size()) + " tokens");
  }
  float largest = kMinusInfinity;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < std::numeric_limits<float>::infinity())) {
      return invalid_argument("the logit of token " + std::to_string(i) +
                              (std::isnan(logits[i]) ? " is NaN" : " is infinite"));
    }
    largest = std::max(largest, logits[i]);
  }
  if (largest == kMinusInfinity) return invalid_argument("all logits are minus infinity");
  std::copy(logits.begin(), logits.end(), logits_.begin());
  return {};
}

void Sampler::apply_repeat_penalty() {
  for (size_t i = 0; i < history_size_; ++i) {
    const auto token = static_cast<size_t>(history_[i]);
    // A token that comes again later in the ring is left to that place: once each.
    int& occurrences = occurrences_[token];
    if (occurrences < 0) continue;
    occurrences = -occurrences;
    float& logit = logits_[token];
    const bool finite = logit > kMinusInfinity;
    logit = logit > 0 ? logit / params_.repeat_penalty : logit * params_.repeat_penalty;
    // A finite logit must not become infinite; minus infinity stays.
    if (finite) {
      logit = std::clamp(logit, std::numeric_limits<float>::lowest(),
                         std::numeric_limits<float>::max());
    }
  }
  for (size_t i = 0; i < history_size_; ++i) {
    int& occurrences = occurrences_[static_cast<size_t>(history_[i])];
    occurrences = std::abs(occurrences);
  }
}

TokenId Sampler::best() const {
  // max_element gives the first of equals.
  return static_cast<TokenId>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
}

Result<TokenId> Sampler::sample(std::span<const float> logits) {
  if (Status status = load(logits); !status.ok()) return status;
  apply_repeat_penalty();
  const TokenId top = best();
  if (params_.temperature == 0) return top;
  largest_ = logits_[static_cast<size_t>(top)];
  std::iota(sorted_.begin(), sorted_.end(), 0);
  num_sorted_ = 0;
  size_t count = sorted_.size();
  if (params_.top_k) {
    count = std::min(count, static_cast<size_t>(*params_.top_k));
    sort_best(count);
  }
  count = apply_top_p(count);
  count = apply_min_p(count);
  return draw(count);
}

void Sampler::sort_best(size_t count) {
  if (count <= num_sorted_) return;
  const auto better = [this](TokenId a, TokenId b) {
    const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto begin = sorted_.begin() + static_cast<ptrdiff_t>(num_sorted_);
  const auto end = sorted_.begin() + static_cast<ptrdiff_t>(count);
  // No two compare equal, so the order does not depend on the library's algorithm.
  if (end != sorted_.end()) std::nth_element(begin, end, sorted_.end(), better);
  std::sort(begin, end, better);
  num_sorted_ = count;
}

double Sampler::weight(TokenId token, double temperature) const {
  const double below = double{logits_[static_cast<size_t>(token)]} - double{largest_};
  return internal::exact_exp(below / temperature);
}

double Sampler::total_weight(size_t count, double temperature) {
  double total = 0;
  if (count == sorted_.size()) {
    // By id, whatever part of sorted_ is in order.
    for (size_t i = 0; i < count; ++i) total += weight(static_cast<TokenId>(i), temperature);
  } else {
    sort_best(count);
    for (size_t i = 0; i < count; ++i) total += weight(sorted_[i], temperature);
  }
  return total;
}

size_t Sampler::apply_top_p(size_t count) {
  if (params_.top_p >= 1) return count;
  const double target = double{params_.top_p} * total_weight(count, 1.0);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i == num_sorted_) sort_best(std::min(count, std::max(kFirstSorted, 4 * i)));
    sum += weight(sorted_[i], 1.0);
    if (sum >= target) return i + 1;
  }
  return count;
}

size_t Sampler::apply_min_p(size_t count) {
  if (params_.min_p <= 0) return count;
  for (size_t i = 1; i < count; ++i) {
    if (i >= num_sorted_) sort_best(std::min(count, std::max(kFirstSorted, 4 * i)));
    if (weight(sorted_[i], 1.0) < double{params_.min_p}) return i;
  }
  return count;
}

TokenId Sampler::draw(size_t count) {
  const double temperature{params_.temperature};
  const double target = random_.next_unit() * total_weight(count, temperature);
  double sum = 0;
  size_t last = 0;  // the last one that has any weight
  for (size_t i = 0; i < count; ++i) {
    if (i >= num_sorted_) sort_best(std::min(count, std::max(kFirstSorted, 4 * i)));
    const double part = weight(sorted_[i], temperature);
    if (part == 0) break;  // and so are all after it
    sum += part;
    last = i;
    if (sum > target) break;
  }
  return sorted_[last];
}

}  // namespace kvik
