// What formats of the cache do to a model's predictions: each beside the same model with an f32
// cache, over the same tokens, in one pass and without storing logits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/eval/candidate.h"
#include "kvik/model/model_runner.h"

namespace kvik {

// KL divergence at positions [begin, end) of a chunk.
struct PositionDivergence {
  int begin = 0;
  int end = 0;
  double mean_kld = 0;
};

struct CandidateResult {
  std::string name;
  int64_t bytes_per_token = 0;  // all layers; padding included where caches store it
  double ratio = 0;             // to the bytes of an f16 cache
  double ppl = 0;
  double ppl_error = 0;  // one standard error, taking positions as independent; so below
  // KL(reference || candidate) of the next token's probabilities, natural log. A position where a
  // logit is not finite counts as infinity.
  double mean_kld = 0;
  double kld_error = 0;
  double kld_median = 0, kld_99 = 0, kld_999 = 0, kld_max = 0;  // quantiles over positions
  double same_top = 0;           // share of positions whose likeliest token is the same, 0 to 1
  double rms_dp = 0;             // root mean square of the change of p(the text's next token)
  double tokens_per_second = 0;  // of its forward passes; logits and the comparison not counted
  std::vector<PositionDivergence> by_position;
};

struct Comparison {
  int context = 0;
  int num_chunks = 0;
  int64_t first_position = 0;  // of a chunk, for RoPE
  int first_scored = 0;        // of a chunk
  int64_t num_positions = 0;   // scored, over all chunks
  CandidateResult reference;   // the f32 cache; its divergences are 0
  std::vector<CandidateResult> candidates;
};

// Work is counted in tokens passed forward, once per cache.
struct CompareProgress {
  int64_t done = 0;
  int64_t total = 0;
  int chunk = 0;  // from 0
  int num_chunks = 0;
};

struct CompareParams {
  int context = 512;                               // tokens of a chunk, at least 4
  std::optional<int> max_chunks = std::nullopt;    // none: all whole chunks
  std::optional<int> first_scored = std::nullopt;  // none: context / 2; 0: every position
  int64_t first_position = 0;  // where RoPE counts a chunk's positions from; a multiple of 512
  int max_rows = 64;           // rows of logits held at a time; changes no result
  int num_buckets = 32;        // of by_position, at most
  // Called after each forward pass; false ends it all with `cancelled`. Must not throw.
  std::function<bool(const CompareProgress&)> on_progress = {};
};

// Chunks as in perplexity(): chunk k is tokens[k * context .. (k + 1) * context), each from empty
// caches, the last part of a chunk left out, the first token of each replaced by BOS where the
// model adds one. Position i predicts token i + 1; those from first_scored to context - 2 are
// scored. The reference and every candidate have caches of their own and pass each batch in turns,
// so that only 3 * max_rows rows of logits exist. Uses the runner's threads and as many of its own;
// results depend on neither their number nor max_rows. Replaces the runner's row hook and leaves
// none, and its first position and leaves 0. Errors: invalid_argument (no candidates, a text
// shorter than a chunk, params out of range); out_of_memory when the caches of all candidates
// exceed what the system can give; cancelled; what a candidate's cache or pass returns, with its
// name.
KVIK_API Result<Comparison> compare_formats(ModelRunner& runner, std::span<const TokenId> tokens,
                                            std::span<const Candidate> candidates,
                                            const CompareParams& params = {});

}  // namespace kvik
