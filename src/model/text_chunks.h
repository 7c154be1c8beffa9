// How a text is cut for perplexities and comparisons: chunk k is tokens k * context up to
// (k + 1) * context, each from an empty cache; the last part, shorter than a chunk, is left out.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/model/tokenizer.h"

namespace kvik::internal {

// How many chunks there are, at most max_chunks. invalid_argument for a text shorter than one.
inline Result<int> num_chunks(std::span<const TokenId> tokens, int context,
                              std::optional<int> max_chunks) {
  const size_t count = tokens.size() / static_cast<size_t>(context);
  if (count == 0) {
    return invalid_argument("the text has " + std::to_string(tokens.size()) +
                            " tokens; one chunk needs " + std::to_string(context));
  }
  const size_t most = max_chunks ? static_cast<size_t>(*max_chunks) : count;
  return static_cast<int>(std::min(count, most));
}

// Chunk `idx`, its first token replaced by BOS where the model adds one. Requires: idx below
// num_chunks.
inline std::vector<TokenId> chunk_of(std::span<const TokenId> tokens, int context, int idx,
                                     const Tokenizer& tokenizer) {
  const auto size = static_cast<size_t>(context);
  const std::span<const TokenId> part = tokens.subspan(static_cast<size_t>(idx) * size, size);
  std::vector<TokenId> chunk(part.begin(), part.end());
  if (tokenizer.adds_bos() && tokenizer.bos()) chunk[0] = *tokenizer.bos();
  return chunk;
}

}  // namespace kvik::internal
