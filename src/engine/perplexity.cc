#include "kvik/engine/perplexity.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/text_chunks.h"

namespace kvik {
namespace {

// Mean of -scores[begin ..].
double mean_nll(std::span<const double> scores, size_t begin) {
  double sum = 0;
  for (size_t i = begin; i < scores.size(); ++i) sum -= scores[i];
  return sum / static_cast<double>(scores.size() - begin);
}

// The tokens of all second halves so far.
struct Moments {
  double count = 0;
  double sum = 0;
  double sum_of_squares = 0;

  void add(double nll) {
    ++count;
    sum += nll;
    sum_of_squares += nll * nll;
  }
  // Standard error of the mean; 0 for a single token.
  double error() const {
    if (count < 2) return 0;
    const double mean = sum / count;
    return std::sqrt(std::max(0.0, sum_of_squares / count - mean * mean) / (count - 1));
  }
};

// All chunks are equally long, so the mean over tokens is the mean over chunks.
void add_chunk(Perplexity& result, Moments& moments, std::span<const double> scores, size_t half) {
  for (const double score : scores.subspan(half)) moments.add(-score);
  result.chunks.push_back({mean_nll(scores, half), mean_nll(scores, 0)});
  ChunkNll sum;
  for (const ChunkNll& each : result.chunks) {
    sum.second_half += each.second_half;
    sum.whole += each.whole;
  }
  const auto count = static_cast<double>(result.chunks.size());
  result.ppl = std::exp(sum.second_half / count);
  result.ppl_error = result.ppl * moments.error();
  result.ppl_whole = std::exp(sum.whole / count);
}

}  // namespace

Result<Perplexity> perplexity(Session& session, std::span<const TokenId> tokens,
                              const PerplexityParams& params) {
  if (params.context < 4 || params.context > session.context()) {
    return invalid_argument("chunks of " + std::to_string(params.context) +
                            " tokens; they must lie in 4 to the context, " +
                            std::to_string(session.context()));
  }
  if (params.max_chunks && *params.max_chunks < 1) {
    return invalid_argument("max_chunks is " + std::to_string(*params.max_chunks) +
                            "; it must be at least 1");
  }
  const Result<int> num_chunks = internal::num_chunks(tokens, params.context, params.max_chunks);
  if (!num_chunks.ok()) return num_chunks.status();
  const Tokenizer& tokenizer = session.runner().model().tokenizer();
  Perplexity result;
  Moments moments;
  for (int i = 0; i < *num_chunks; ++i) {
    const Result<std::vector<double>> scores =
        session.score(internal::chunk_of(tokens, params.context, i, tokenizer));
    if (!scores.ok()) return scores.status();
    add_chunk(result, moments, *scores, static_cast<size_t>(params.context) / 2);
    if (params.on_chunk && !params.on_chunk(result, *num_chunks)) break;
  }
  return result;
}

}  // namespace kvik
