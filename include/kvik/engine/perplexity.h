// Perplexity of a text, chunk by chunk.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/engine/session.h"

namespace kvik {

// Mean of -ln p of the next token, over the second half of a chunk and over all of it.
struct ChunkNll {
  double second_half = 0;
  double whole = 0;
};

struct Perplexity {
  double ppl = 0;        // exp of the mean over the second halves
  double ppl_error = 0;  // one standard error of ppl, taking tokens as independent
  double ppl_whole = 0;  // exp of the mean over the whole chunks
  std::vector<ChunkNll> chunks;
};

struct PerplexityParams {
  int context = 512;                             // tokens of a chunk, at least 4
  std::optional<int> max_chunks = std::nullopt;  // none: all whole chunks
  // Called after each chunk; false stops with the chunks so far. Must not throw.
  std::function<bool(const Perplexity& so_far, int num_chunks)> on_chunk = {};
};

// Chunk k is tokens[k * context .. (k + 1) * context), each computed from an empty cache; a last
// part of a chunk is left out. When the model adds BOS, the first token of each chunk is replaced
// by it. Second half: p(token[i + 1] | token[0 .. i]) for i = context / 2 .. context - 2; whole:
// from i = 0. Errors: invalid_argument when the text is shorter than one chunk, or the chunk longer
// than the session's context; as Session::score.
KVIK_API Result<Perplexity> perplexity(Session& session, std::span<const TokenId> tokens,
                                       const PerplexityParams& params = {});

}  // namespace kvik
