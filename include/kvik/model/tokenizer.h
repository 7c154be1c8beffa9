// Text to token ids and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/model/vocabulary.h"

namespace kvik {

// A byte that the vocabulary has no token for (vocabularies may lack rare ones).
enum class MissingByte : uint8_t {
  refuse,  // invalid_argument, naming the byte and its offset
  drop,    // left out: the ids then decode to less than the text
};

struct EncodeOptions {
  bool add_special = true;     // add BOS and EOS where the vocabulary says so
  bool parse_special = false;  // control tokens written out in the text become those tokens
  MissingByte missing_byte = MissingByte::refuse;
};

// A stretch of a longer text; control tokens are found only within trusted stretches.
struct TextSpan {
  std::string_view text;
  bool trusted = false;
};

// Immutable after create(): any number of threads may use one at the same time.
class KVIK_API Tokenizer {
 public:
  // Two kinds: byte-level byte pairs (model "gpt2") and SentencePiece merges by score ("llama").
  // Errors: unsupported (model or pre-tokenizer, the message lists those that are supported),
  // corrupt (parts of the vocabulary contradict each other; the message names the key).
  static Result<Tokenizer> create(Vocabulary vocabulary);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any bytes are accepted: what is not UTF-8 is cut and merged as single bytes and comes back
  // unchanged from decode(). Only U+2581 comes back as a space from "llama" vocabularies, where it
  // stands for one, and text in normal form C from "qwen2" ones, which are trained on that. Time is
  // O(n log n) for any input. Texts of 2 GiB and more are refused.
  Result<std::vector<TokenId>> encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;
  // The spans joined into one text, but a control token is found only where all of it lies in
  // neighbouring trusted spans: message content in a chat can never forge one. Ignores
  // options.parse_special.
  Result<std::vector<TokenId>> encode_spans(std::span<const TextSpan> spans,
                                            const EncodeOptions& options = {}) const;

  int vocab_size() const;
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  bool adds_bos() const;
  bool adds_eos() const;
  // encode() sees a space before the text, and after each token that it matches as a whole;
  // decode() gives these spaces too, because they are in the ids.
  bool adds_space_prefix() const;
  // True if `ids` starts with BOS twice: a text that spells it out, encoded with parse_special, in
  // a vocabulary that also adds it. Callers warn.
  bool has_double_bos(std::span<const TokenId> ids) const;

  // Ids outside [0, vocab_size()) are invalid_argument here and in all functions below.
  Result<TokenType> token_type(TokenId id) const;
  // Whether text becomes the token only where that is asked for: control tokens, and those that the
  // chat template spells. False for ids out of range.
  bool is_marker(TokenId id) const;
  // The piece as the vocabulary spells it ("Ġthe"). Valid as long as the tokenizer.
  Result<std::string_view> piece(TokenId id) const;
  // The bytes that the token stands for (" the"); for control tokens their spelled-out text.
  // Valid as long as the tokenizer.
  Result<std::string_view> token_bytes(TokenId id) const;
  // The token whose piece is exactly `piece`, of any type: for finding "<|im_end|>" and the like.
  std::optional<TokenId> find(std::string_view piece) const;

  // The bytes of all ids in a row; not always UTF-8. With skip_special, control and unknown tokens
  // give nothing.
  Result<std::string> decode(std::span<const TokenId> ids, bool skip_special = false) const;

 private:
  class Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace kvik
