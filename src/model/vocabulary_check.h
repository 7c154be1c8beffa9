// What every vocabulary must keep to, whatever its kind.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/model/vocabulary.h"

namespace kvik::internal {

inline constexpr size_t kMaxVocabularyTokens = size_t{1} << 26;
// Finding a token in a text may look at so many bytes at each position.
inline constexpr size_t kMaxMatchedBytes = 1024;

// Matched only where a text is trusted, and left out of decoded text on request.
inline bool is_special(TokenType type) {
  return type == TokenType::control || type == TokenType::unknown;
}

// Found in a text as a whole string rather than merged from its parts.
inline bool matched_whole(TokenType type) {
  return is_special(type) || type == TokenType::user_defined;
}

// The lists fit each other and hold nothing absurd: as many scores and types as tokens, finite
// scores. Errors: corrupt, naming the key.
Status check_lists(const Vocabulary& vocabulary);

// check_lists(), and: the kind is one that Kvik encodes; types, ids and lengths are within bounds;
// what the kind cannot do without is there. Errors: unsupported (naming the kind), corrupt (naming
// the key).
Status check_vocabulary(const Vocabulary& vocabulary);

// Makes control tokens of those that only a template may write: BOS, EOS, and what is spelled like
// a marker of turns. Files call some of them user-defined, which would let the text of a message
// end its turn and begin another, or normal, which would take the markers of a template apart. A
// vocabulary without types gets them. Requires: check_vocabulary() passed.
void restrict_markers(Vocabulary& vocabulary);

// What ends an answer in the chat formats in use, by its spelling.
bool ends_a_turn(std::string_view piece);

// The other tokens in brackets, like "[INST]", that the texts of a chat template spell and that are
// not matched as a whole by their type. Tokens that merges make count as text: other tokenizers
// take them so. Requires: check_lists() passed.
std::vector<TokenId> find_template_markers(const Vocabulary& vocabulary,
                                           std::string_view chat_template);

// Whether encode() adds BOS where the file does not say. Requires: a kind that Kvik encodes.
bool adds_bos_unless_told(const Vocabulary& vocabulary);

}  // namespace kvik::internal
