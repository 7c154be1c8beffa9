// What a model file says about its tokens: plain data, filled by a loader, checked by Tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

class GgufFile;

using TokenId = int32_t;

// Values of `tokenizer.ggml.token_type`.
enum class TokenType : uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,       // has a meaning for the model; text becomes it only where that is asked for
  user_defined = 4,  // matched in any text, before pre-tokenization
  unused = 5,        // never produced from text
  byte = 6,          // "<0x41>"
};
// Tokenizer takes BOS, EOS and markers of turns ("<|im_start|>") for control, whatever type of
// these a file gives them: normal, user_defined or unused.

struct Vocabulary {
  std::string model;  // tokenizer.ggml.model: "gpt2" (byte-level byte pairs), "llama" (merges by
                      // score), ...
  std::string pre;    // tokenizer.ggml.pre, for example "smollm"; "llama" has no use for it

  std::vector<std::string> pieces;   // tokenizer.ggml.tokens, as stored
  std::vector<float> scores;         // tokenizer.ggml.scores; empty or one per piece; finite
  std::vector<int32_t> token_types;  // tokenizer.ggml.token_type; empty (all normal) or one each
  std::vector<std::string> merges;   // tokenizer.ggml.merges, "left right", best first

  // Further tokens that the chat template spells, of any type: whole tokens where control tokens
  // are, never parts of other text; their type says how they are decoded. read_vocabulary() finds
  // them.
  std::vector<TokenId> template_markers;

  std::optional<TokenId> bos, eos, unknown, padding;
  std::optional<bool> add_bos;  // absent: yes for "llama" and for the pre-tokenizer llama-bpe
  std::optional<bool> add_eos;  // absent: no
  // A space before the text and after each token that is matched as a whole; "llama" only, absent:
  // yes.
  std::optional<bool> add_space_prefix;
};

// The vocabulary of a model file (keys tokenizer.ggml.*), as it stands there. Errors: corrupt or
// invalid_argument naming a key that is missing or of the wrong type; an id outside int32; as many
// scores or types as tokens are not there, or a score is not finite; unsupported naming a key that
// asks for what Kvik's tokenizers do not do.
KVIK_API Result<Vocabulary> read_vocabulary(const GgufFile& file);

}  // namespace kvik
