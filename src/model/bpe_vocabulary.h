// A byte-level byte-pair vocabulary ready for encoding, and the encoder of one text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/model/vocabulary.h"
#include "model/bpe_merger.h"

namespace kvik::internal {

// Symbols are byte strings. Those that are tokens have the token's id; others (the halves and
// results of merges that are no tokens, bytes without a token) have numbers from vocab_size on.
class BpeVocabulary {
 public:
  // `whole_pieces`: a piece that is a token is that token, whatever the merges would give.
  // Errors: corrupt, naming the key and the entry. Requires: types, if any, one for each piece.
  static Result<BpeVocabulary> create(const Vocabulary& vocabulary, bool whole_pieces);

  const MergeTable& merges() const { return merges_; }
  Symbol byte_symbol(uint8_t byte) const { return byte_symbols_[byte]; }
  bool is_token(Symbol symbol) const { return static_cast<size_t>(symbol) < token_bytes_.size(); }
  // Requires: a symbol of this vocabulary.
  std::string_view symbol_bytes(Symbol symbol) const;
  // The token that a whole piece becomes without merging, where the vocabulary works like that.
  std::optional<TokenId> whole_piece(std::string_view bytes) const;

  // Requires: an id of the vocabulary.
  std::string_view token_bytes(TokenId id) const { return token_bytes_[static_cast<size_t>(id)]; }
  std::optional<TokenId> find_piece(std::string_view piece) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  using StringMap = std::unordered_map<std::string, Symbol, Hash, std::equal_to<>>;

  BpeVocabulary(size_t num_merges, bool whole_pieces)
      : merges_(num_merges), whole_pieces_(whole_pieces) {}
  Status add_tokens(const Vocabulary& vocabulary);
  Status add_token(std::string_view piece, TokenType type, TokenId id);
  Status add_merges(const std::vector<std::string>& merges);
  Symbol intern(std::string bytes);

  std::vector<std::string> token_bytes_;
  std::vector<std::string> other_bytes_;  // of symbols that are no tokens
  StringMap symbols_;                     // bytes -> symbol
  StringMap pieces_;                      // piece as stored -> id
  std::array<Symbol, 256> byte_symbols_{};
  MergeTable merges_;
  bool whole_pieces_;
};

// Encodes the pieces of one text. A piece that has been seen before is copied from the ids that it
// gave then: most words of a long text.
class BpeEncoder {
 public:
  // `ids` grows by what encode_piece() finds; nobody else may shrink it or change what is there.
  // All three must outlive the encoder.
  BpeEncoder(const BpeVocabulary& vocabulary, std::string_view text, std::vector<TokenId>& ids);

  // Encodes text[begin, end). A byte without a token is left out if `drop_missing`, else
  // invalid_argument.
  Status encode_piece(size_t begin, size_t end, bool drop_missing);

 private:
  struct Seen {
    uint32_t begin = 0, length = 0;  // in text; length 0: nothing seen
    uint32_t ids_begin = 0, ids_count = 0;
  };
  Status append_symbol(Symbol symbol, size_t offset, bool drop_missing);

  const BpeVocabulary* vocabulary_;
  std::string_view text_;
  std::vector<TokenId>* ids_;
  BpeMerger merger_;
  std::vector<Symbol> symbols_;
  std::vector<Seen> seen_;  // direct-mapped by hash
};

}  // namespace kvik::internal
