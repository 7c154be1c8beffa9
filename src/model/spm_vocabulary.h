// The vocabularies that GGUF files call "llama": SentencePiece pieces with scores.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/model/vocabulary.h"
#include "model/special_matcher.h"
#include "model/spm_merger.h"

namespace kvik::internal {

// Ready for encoding. U+2581 in a normal piece stands for the space, so a space and a U+2581 of a
// text are the same to the merges. Characters that end up in no piece become byte tokens.
// Same ids as llama.cpp, except for what lets text become something that it does not spell: merges
// never give control, unknown and byte tokens, nor unused ones, and what is not UTF-8 is cut into
// single bytes.
class SpmVocabulary {
 public:
  // Errors: corrupt, naming the key and the entry. Requires: check_vocabulary() passed.
  static Result<SpmVocabulary> create(const Vocabulary& vocabulary);

  // Appends the ids of the fragments. A byte without a token is left out if `drop_missing`, else
  // invalid_argument. Requires: the fragments are of `text`, which is shorter than 2 GiB.
  Status encode(std::string_view text, std::span<const SpecialMatcher::Fragment> fragments,
                bool drop_missing, std::vector<TokenId>& ids) const;

  // Requires: an id of the vocabulary.
  std::string_view token_bytes(TokenId id) const { return pieces_.bytes(id); }

 private:
  friend class SpmEncoder;

  SpmVocabulary(SpmPieces pieces, bool add_space_prefix)
      : pieces_(std::move(pieces)), add_space_prefix_(add_space_prefix) {}

  SpmPieces pieces_;
  std::array<std::optional<TokenId>, 256> byte_tokens_{};
  bool add_space_prefix_;
};

}  // namespace kvik::internal
