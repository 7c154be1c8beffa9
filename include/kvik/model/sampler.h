// Chooses the next token from a model's logits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/model/vocabulary.h"

namespace kvik {

// xoshiro256** by D. Blackman and S. Vigna (2018), its state filled by splitmix64 from the seed as
// they advise. The same numbers on every machine.
class KVIK_API Random {
 public:
  explicit Random(uint64_t seed);
  // Requires: not all four are zero.
  explicit Random(const std::array<uint64_t, 4>& state) : state_(state) {}

  uint64_t next();
  // The upper 53 bits of next() as a number in [0, 1).
  double next_unit();

 private:
  std::array<uint64_t, 4> state_;
};

// Applied in this order, that of llama.cpp's default chain: repeat penalty, top-k, top-p, min-p,
// temperature, draw.
struct SamplerParams {
  // A token among the last `repeat_last_n` accepted ones: its logit is divided by the penalty if it
  // is positive, else multiplied, once however often it occurs. 1 changes nothing.
  float repeat_penalty = 1.0F;
  int repeat_last_n = 64;
  // The k best tokens. nullopt: all.
  std::optional<int> top_k = std::nullopt;
  // The fewest best tokens whose probabilities (softmax over what top-k left, at temperature 1)
  // reach this sum. 1: all.
  float top_p = 1.0F;
  // Tokens whose probability is at least this part of the best one's. 0: all.
  float min_p = 0.0F;
  // Logits are divided by it. 0: the best token, always; then the seed is not used.
  float temperature = 1.0F;
  uint64_t seed = 0;
};

// "Best" is by logit, the lower id among equals. The draw goes through the remaining tokens from
// the best on. Only IEEE double arithmetic in a fixed order decides (own exponential, no libm), so
// the same logits, seed and history give the same token on every machine.
// After create() nothing allocates. Copies are independent. One thread at a time.
class KVIK_API Sampler {
 public:
  // Errors: invalid_argument, naming the parameter.
  static Result<Sampler> create(const SamplerParams& params, int vocab_size);

  // The next token; does not accept() it. A logit of minus infinity is a token that is never
  // chosen. Errors, with nothing changed: invalid_argument for a wrong number of logits, one that
  // is NaN or plus infinity, or none above minus infinity.
  Result<TokenId> sample(std::span<const float> logits);

  // Adds a token, of the prompt or sampled, to what the repeat penalty looks back on.
  // Ids outside the vocabulary: invalid_argument.
  Status accept(TokenId token);
  // Forgets what was accepted and starts the seed again.
  void reset();

 private:
  Sampler(const SamplerParams& params, int vocab_size);

  Status load(std::span<const float> logits);
  void apply_repeat_penalty();
  TokenId best() const;
  // Makes sorted_[0, count) the best tokens in order. Requires: count <= the size of sorted_.
  void sort_best(size_t count);
  size_t apply_top_p(size_t count);
  size_t apply_min_p(size_t count);
  TokenId draw(size_t count);
  // Sum of the weights exp((logit - largest) / temperature) of the best `count` tokens.
  double total_weight(size_t count, double temperature);
  double weight(TokenId token, double temperature) const;

  SamplerParams params_;
  Random random_;
  std::vector<float> logits_;    // by id, after the penalty
  std::vector<TokenId> sorted_;  // all ids; a first part of them in order
  size_t num_sorted_ = 0;
  float largest_ = 0;
  std::vector<TokenId> history_;  // ring of the last repeat_last_n
  size_t history_size_ = 0;
  size_t history_next_ = 0;
  std::vector<int> occurrences_;  // in the history, by id
};

}  // namespace kvik
