// A byte-level byte-pair vocabulary ready for encoding, and the encoder of one text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/model/pre_tokenizer.h"
#include "kvik/model/vocabulary.h"
#include "model/bpe_merger.h"
#include "model/normaliser.h"
#include "model/piece_cache.h"
#include "model/special_matcher.h"

namespace kvik::internal {

// Symbols are byte strings. Those that are tokens have the token's id; others (the halves and
// results of merges that are no tokens, bytes without a token) have numbers from vocab_size on.
class BpeVocabulary {
 public:
  // Errors: unsupported, naming the pre-tokenizer; corrupt, naming the key and the entry.
  // Requires: check_vocabulary() passed.
  static Result<BpeVocabulary> create(const Vocabulary& vocabulary);

  // Appends the ids of the fragments. A byte without a token is left out if `drop_missing`, else
  // invalid_argument. Requires: the fragments are of `text`, which is shorter than 2 GiB.
  Status encode(std::string_view text, std::span<const SpecialMatcher::Fragment> fragments,
                bool drop_missing, std::vector<TokenId>& ids) const;

  const MergeTable& merges() const { return merges_; }
  Symbol byte_symbol(uint8_t byte) const { return byte_symbols_[byte]; }
  bool is_token(Symbol symbol) const { return static_cast<size_t>(symbol) < token_bytes_.size(); }
  // Requires: a symbol of this vocabulary.
  std::string_view symbol_bytes(Symbol symbol) const;
  // The token that a whole piece becomes without merging, where the vocabulary works like that.
  std::optional<TokenId> whole_piece(std::string_view bytes) const;

  // Requires: an id of the vocabulary.
  std::string_view token_bytes(TokenId id) const { return token_bytes_[static_cast<size_t>(id)]; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  using StringMap = std::unordered_map<std::string, Symbol, Hash, std::equal_to<>>;

  // A stretch of plain text at `begin` of a normalised text.
  struct Stretch {
    size_t begin, original_begin;
    NfcText text;
  };
  // As encode(), of a text that is normal already.
  Status encode_normal(std::string_view text, std::span<const SpecialMatcher::Fragment> fragments,
                       bool drop_missing, std::vector<TokenId>& ids,
                       std::span<const Stretch> stretches) const;

  BpeVocabulary(size_t num_merges, PreTokenizer pre) : merges_(num_merges), pre_(pre) {}
  Status add_tokens(const Vocabulary& vocabulary);
  Status add_token(std::string_view piece, TokenType type, TokenId id);
  Status add_merges(const std::vector<std::string>& merges);
  Symbol intern(std::string bytes);

  std::vector<std::string> token_bytes_;
  std::vector<std::string> other_bytes_;  // of symbols that are no tokens
  StringMap symbols_;                     // bytes -> symbol
  std::array<Symbol, 256> byte_symbols_{};
  MergeTable merges_;
  PreTokenizer pre_;
};

struct MissingByteAt {
  uint8_t byte;
  size_t offset;
};

// Encodes the pieces of one text.
class BpeEncoder {
 public:
  // `ids` grows by what encode_piece() finds; nobody else may shrink it or change what is there.
  // All three must outlive the encoder.
  BpeEncoder(const BpeVocabulary& vocabulary, std::string_view text, std::vector<TokenId>& ids);

  // Encodes text[begin, end). A byte without a token is left out if `drop_missing`, else it is
  // returned, with its offset in the text, and ends the encoding.
  std::optional<MissingByteAt> encode_piece(size_t begin, size_t end, bool drop_missing);

 private:
  std::optional<MissingByteAt> append_symbol(Symbol symbol, size_t offset, bool drop_missing);

  const BpeVocabulary* vocabulary_;
  std::string_view text_;
  std::vector<TokenId>* ids_;
  BpeMerger merger_;
  std::vector<Symbol> symbols_;
  PieceCache cache_;
};

}  // namespace kvik::internal
