#include "model/spm_vocabulary.h"

#include <optional>
#include <string>

#include "model/byte_piece.h"
#include "model/piece_cache.h"

namespace kvik::internal {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// Appends `text` with U+2581 as the space. (Its bytes never belong to another character.)
void append_normalized(std::string_view text, std::string& out) {
  while (true) {
    const size_t mark = text.find(kSpaceMark);
    out += text.substr(0, mark);
    if (mark == std::string_view::npos) return;
    out += ' ';
    text.remove_prefix(mark + kSpaceMark.size());
  }
}

// Where the byte at `pos` of the normalized text stands in the text itself.
size_t original_offset(std::string_view text, size_t pos) {
  size_t offset = 0;
  for (; pos > 0; --pos) offset += text.substr(offset).starts_with(kSpaceMark) ? 3 : 1;
  return offset;
}

SpmPieces::Merging merging_of(TokenType type, std::string_view piece) {
  // A merge sees no U+2581 but spaces: a piece with a real space, or a user-defined one with a
  // U+2581 (it is matched and decoded as spelled), is not what a merged text spells.
  const bool has_space = piece.find(' ') != std::string_view::npos;
  const bool has_mark = piece.find(kSpaceMark) != std::string_view::npos;
  switch (type) {
    case TokenType::normal:
      return has_space ? SpmPieces::Merging::never : SpmPieces::Merging::yes;
    case TokenType::user_defined:
      return has_space || has_mark ? SpmPieces::Merging::never : SpmPieces::Merging::yes;
    case TokenType::unused:
      return has_space ? SpmPieces::Merging::never : SpmPieces::Merging::passing;
    case TokenType::unknown:
    case TokenType::control:
    case TokenType::byte:
      break;
  }
  return SpmPieces::Merging::never;
}

}  // namespace

// Encodes the fragments of one text.
class SpmEncoder {
 public:
  SpmEncoder(const SpmVocabulary& vocabulary, std::string_view text, bool drop_missing,
             std::vector<TokenId>& ids)
      : vocabulary_(&vocabulary),
        text_(text),
        drop_missing_(drop_missing),
        ids_(&ids),
        merger_(vocabulary.pieces_),
        cache_(text.size()) {
    normalized_.reserve(text.size() + 1);
  }

  Status encode_plain(size_t begin, size_t end, bool add_space) {
    const size_t first = normalized_.size();
    if (add_space) normalized_ += ' ';
    const size_t start = normalized_.size();
    append_normalized(text_.substr(begin, end - begin), normalized_);
    for (size_t pos = first; pos < normalized_.size();) {
      const size_t next = segment_end(pos);
      const std::optional<size_t> missing = encode_segment(pos, next);
      if (missing) {
        const size_t offset = *missing < start ? 0 : *missing - start;
        return missing_byte(static_cast<uint8_t>(normalized_[*missing]),
                            begin + original_offset(text_.substr(begin), offset));
      }
      pos = next;
    }
    return {};
  }

 private:
  // Where no merge reaches across.
  size_t segment_end(size_t pos) const {
    for (++pos; pos < normalized_.size(); ++pos) {
      if (!vocabulary_->pieces_.side_by_side(normalized_[pos - 1], normalized_[pos]) &&
          !continues_character(pos)) {
        break;
      }
    }
    return pos;
  }
  // Bytes from 0x80 to 0xBF start no character. (Where they stray, the cut comes later.)
  bool continues_character(size_t pos) const {
    return (static_cast<uint8_t>(normalized_[pos]) & 0xC0) == 0x80;
  }

  // The offset in normalized_ of a byte that has no token and is not to be dropped.
  std::optional<size_t> encode_segment(size_t begin, size_t end) {
    if (cache_.append_known(normalized_, begin, end, *ids_)) return std::nullopt;
    const size_t ids_begin = ids_->size();
    const std::string_view segment = std::string_view(normalized_).substr(begin, end - begin);
    for (const SpmMerger::Part& part : merger_.merge(segment)) {
      if (part.id) {
        ids_->push_back(*part.id);
        continue;
      }
      for (size_t i = 0; i < part.length; ++i) {
        const auto byte = static_cast<uint8_t>(segment[part.begin + i]);
        const std::optional<TokenId> token = vocabulary_->byte_tokens_[byte];
        if (token) {
          ids_->push_back(*token);
        } else if (!drop_missing_) {
          return begin + part.begin + i;
        }
      }
    }
    cache_.remember(normalized_, begin, end, ids_begin, *ids_);
    return std::nullopt;
  }

  const SpmVocabulary* vocabulary_;
  std::string_view text_;
  bool drop_missing_;
  std::vector<TokenId>* ids_;
  SpmMerger merger_;
  PieceCache cache_;
  std::string normalized_;  // of all fragments so far
};

Result<SpmVocabulary> SpmVocabulary::create(const Vocabulary& vocabulary) {
  const size_t size = vocabulary.pieces.size();
  size_t total_bytes = 0;
  for (const std::string& piece : vocabulary.pieces) total_bytes += piece.size();
  SpmVocabulary spm(SpmPieces(size, total_bytes), vocabulary.add_space_prefix.value_or(true));
  std::string bytes;
  for (size_t i = 0; i < size; ++i) {
    const std::string& piece = vocabulary.pieces[i];
    const auto type = static_cast<TokenType>(vocabulary.token_types[i]);
    bytes.clear();
    if (type == TokenType::byte) {
      const std::optional<uint8_t> byte = parse_byte_piece(piece);
      if (!byte) {
        return Status(StatusCode::corrupt, "tokenizer.ggml.tokens[" + std::to_string(i) +
                                               "] has the type byte but is not spelled like "
                                               "<0x41>; the model file is damaged");
      }
      bytes = static_cast<char>(*byte);
      std::optional<TokenId>& token = spm.byte_tokens_[*byte];
      if (!token) token = static_cast<TokenId>(i);
    } else if (type == TokenType::normal || type == TokenType::unused) {
      append_normalized(piece, bytes);
    } else {
      bytes = piece;
    }
    spm.pieces_.add(bytes, vocabulary.scores[i], merging_of(type, piece));
  }
  return spm;
}

Status SpmVocabulary::encode(std::string_view text,
                             std::span<const SpecialMatcher::Fragment> fragments, bool drop_missing,
                             std::vector<TokenId>& ids) const {
  SpmEncoder encoder(*this, text, drop_missing, ids);
  bool after_token = true;  // the start of the text counts as such
  for (const SpecialMatcher::Fragment& fragment : fragments) {
    if (fragment.is_token) {
      ids.push_back(fragment.id);
    } else {
      Status status =
          encoder.encode_plain(fragment.begin, fragment.end, add_space_prefix_ && after_token);
      if (!status.ok()) return status;
    }
    after_token = fragment.is_token;
  }
  return {};
}

}  // namespace kvik::internal
