#include "model/bpe_vocabulary.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "model/byte_alphabet.h"
#include "model/byte_piece.h"

namespace kvik::internal {
namespace {

Status corrupt(const char* key, size_t index, const std::string& what) {
  return {StatusCode::corrupt,
          std::string("tokenizer.ggml.") + key + "[" + std::to_string(index) + "] " + what};
}

}  // namespace

Result<BpeVocabulary> BpeVocabulary::create(const Vocabulary& vocabulary) {
  const Result<PreTokenizer> pre = pre_tokenizer_from_name(vocabulary.pre);
  if (!pre.ok()) return pre.status();
  if (vocabulary.merges.size() > std::numeric_limits<uint32_t>::max() / 8) {
    return Status(StatusCode::corrupt, "tokenizer.ggml.merges has more entries than ranks allow");
  }
  BpeVocabulary bpe(vocabulary.merges.size(), *pre);
  if (Status status = bpe.add_tokens(vocabulary); !status.ok()) return status;
  for (int byte = 0; byte < 256; ++byte) {
    bpe.byte_symbols_[static_cast<size_t>(byte)] =
        bpe.intern(std::string(1, static_cast<char>(byte)));
  }
  if (Status status = bpe.add_merges(vocabulary.merges); !status.ok()) return status;
  return bpe;
}

Status BpeVocabulary::add_tokens(const Vocabulary& vocabulary) {
  const size_t size = vocabulary.pieces.size();
  token_bytes_.reserve(size);
  symbols_.reserve(size + 256);
  for (size_t i = 0; i < size; ++i) {
    const auto id = static_cast<TokenId>(i);
    const TokenType type = vocabulary.token_types.empty()
                               ? TokenType::normal
                               : static_cast<TokenType>(vocabulary.token_types[i]);
    if (Status status = add_token(vocabulary.pieces[i], type, id); !status.ok()) return status;
  }
  // These may also come out of merges, unless a normal token has the same bytes.
  for (size_t i = 0; i < vocabulary.token_types.size(); ++i) {
    const auto type = static_cast<TokenType>(vocabulary.token_types[i]);
    if (type == TokenType::user_defined || type == TokenType::byte) {
      symbols_.emplace(token_bytes_[i], static_cast<Symbol>(i));
    }
  }
  return {};
}

Status BpeVocabulary::add_token(std::string_view piece, TokenType type, TokenId id) {
  std::optional<std::string> bytes;
  if (type == TokenType::byte) {
    const std::optional<uint8_t> byte = parse_byte_piece(piece);
    if (!byte) {
      return corrupt("tokens", static_cast<size_t>(id),
                     "has the type byte but is not spelled like <0x41>");
    }
    bytes = std::string(1, static_cast<char>(*byte));
  } else if (type == TokenType::normal) {
    bytes = bytes_of_piece(piece);
  }
  // Two normal pieces never share bytes: the alphabet is one to one.
  if (bytes && type == TokenType::normal) symbols_.emplace(*bytes, id);
  token_bytes_.push_back(bytes ? std::move(*bytes) : std::string(piece));
  return {};
}

Status BpeVocabulary::add_merges(const std::vector<std::string>& merges) {
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& merge = merges[rank];
    const size_t space = merge.find(' ');
    if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos) {
      return corrupt("merges", rank, "is not two symbols with one space between");
    }
    std::optional<std::string> left = bytes_of_piece(std::string_view(merge).substr(0, space));
    std::optional<std::string> right = bytes_of_piece(std::string_view(merge).substr(space + 1));
    if (!left || !right || left->empty() || right->empty()) {
      return corrupt("merges", rank, "has a symbol that is empty or no string of bytes");
    }
    const Symbol result = intern(*left + *right);
    merges_.insert(intern(std::move(*left)), intern(std::move(*right)),
                   {static_cast<uint32_t>(rank), result});
  }
  return {};
}

Symbol BpeVocabulary::intern(std::string bytes) {
  const auto known = symbols_.find(std::string_view(bytes));
  if (known != symbols_.end()) return known->second;
  const auto symbol = static_cast<Symbol>(token_bytes_.size() + other_bytes_.size());
  other_bytes_.push_back(bytes);
  symbols_.emplace(std::move(bytes), symbol);
  return symbol;
}

std::string_view BpeVocabulary::symbol_bytes(Symbol symbol) const {
  const auto index = static_cast<size_t>(symbol);
  return is_token(symbol) ? token_bytes_[index] : other_bytes_[index - token_bytes_.size()];
}

std::optional<TokenId> BpeVocabulary::whole_piece(std::string_view bytes) const {
  // Vocabularies of this kind take a piece that is a token as that token, whatever the merges say.
  if (pre_ != PreTokenizer::llama_bpe) return std::nullopt;
  const auto it = symbols_.find(bytes);
  if (it == symbols_.end() || !is_token(it->second)) return std::nullopt;
  return it->second;
}

Status BpeVocabulary::encode(std::string_view text,
                             std::span<const SpecialMatcher::Fragment> fragments, bool drop_missing,
                             std::vector<TokenId>& ids) const {
  if (!normalises_to_nfc(pre_)) return encode_normal(text, fragments, drop_missing, ids, {});
  // Whole tokens were cut out before; what lies between is normalised, each stretch by itself.
  std::string normal;
  std::vector<SpecialMatcher::Fragment> normal_fragments;
  std::vector<Stretch> stretches;
  for (const SpecialMatcher::Fragment& fragment : fragments) {
    const std::string_view piece = text.substr(fragment.begin, fragment.end - fragment.begin);
    SpecialMatcher::Fragment moved = fragment;
    moved.begin = normal.size();
    if (fragment.is_token) {
      normal += piece;
    } else {
      stretches.push_back({moved.begin, fragment.begin, NfcText(piece)});
      normal += stretches.back().text.view();
    }
    moved.end = normal.size();
    normal_fragments.push_back(moved);
  }
  return encode_normal(normal, normal_fragments, drop_missing, ids, stretches);
}

Status BpeVocabulary::encode_normal(std::string_view text,
                                    std::span<const SpecialMatcher::Fragment> fragments,
                                    bool drop_missing, std::vector<TokenId>& ids,
                                    std::span<const Stretch> stretches) const {
  // Of the text that the caller knows, for messages.
  const auto original = [stretches](size_t offset) {
    const auto next = std::upper_bound(
        stretches.begin(), stretches.end(), offset,
        [](size_t wanted, const Stretch& stretch) { return wanted < stretch.begin; });
    if (next == stretches.begin()) return offset;
    const Stretch& stretch = *(next - 1);
    return stretch.original_begin + stretch.text.original_offset(offset - stretch.begin);
  };
  BpeEncoder encoder(*this, text, ids);
  for (const SpecialMatcher::Fragment& fragment : fragments) {
    if (fragment.is_token) {
      ids.push_back(fragment.id);
      continue;
    }
    const std::string_view plain = text.substr(0, fragment.end).substr(fragment.begin);
    for (size_t begin = 0; begin < plain.size();) {
      const size_t end = piece_end(pre_, plain, begin);
      const std::optional<MissingByteAt> missing =
          encoder.encode_piece(fragment.begin + begin, fragment.begin + end, drop_missing);
      if (missing) return missing_byte(missing->byte, original(missing->offset));
      begin = end;
    }
  }
  return {};
}

BpeEncoder::BpeEncoder(const BpeVocabulary& vocabulary, std::string_view text,
                       std::vector<TokenId>& ids)
    : vocabulary_(&vocabulary),
      text_(text),
      ids_(&ids),
      merger_(vocabulary.merges()),
      cache_(text.size()) {}

std::optional<MissingByteAt> BpeEncoder::encode_piece(size_t begin, size_t end, bool drop_missing) {
  const std::string_view piece = text_.substr(begin, end - begin);
  if (cache_.append_known(text_, begin, end, *ids_)) return std::nullopt;
  const size_t ids_begin = ids_->size();
  if (const std::optional<TokenId> whole = vocabulary_->whole_piece(piece)) {
    ids_->push_back(*whole);
  } else {
    symbols_.clear();
    for (const char c : piece) {
      symbols_.push_back(vocabulary_->byte_symbol(static_cast<uint8_t>(c)));
    }
    merger_.merge(symbols_);
    size_t offset = begin;
    for (const Symbol symbol : symbols_) {
      if (auto missing = append_symbol(symbol, offset, drop_missing)) return missing;
      offset += vocabulary_->symbol_bytes(symbol).size();
    }
  }
  cache_.remember(text_, begin, end, ids_begin, *ids_);
  return std::nullopt;
}

std::optional<MissingByteAt> BpeEncoder::append_symbol(Symbol symbol, size_t offset,
                                                       bool drop_missing) {
  if (vocabulary_->is_token(symbol)) {
    ids_->push_back(symbol);
    return std::nullopt;
  }
  // No token has these bytes: one token for each of them.
  for (const char c : vocabulary_->symbol_bytes(symbol)) {
    const auto byte = static_cast<uint8_t>(c);
    const Symbol byte_symbol = vocabulary_->byte_symbol(byte);
    if (vocabulary_->is_token(byte_symbol)) {
      ids_->push_back(byte_symbol);
    } else if (!drop_missing) {
      return MissingByteAt{byte, offset};
    }
    ++offset;
  }
  return std::nullopt;
}

}  // namespace kvik::internal
