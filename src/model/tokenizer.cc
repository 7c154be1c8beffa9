#include "kvik/model/tokenizer.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "model/bpe_vocabulary.h"
#include "model/piece_table.h"
#include "model/special_matcher.h"
#include "model/spm_vocabulary.h"
#include "model/vocabulary_check.h"

namespace kvik {
namespace {

using internal::BpeVocabulary;
using internal::is_special;
using internal::matched_whole;
using internal::PieceTable;
using internal::SpecialMatcher;
using internal::SpmVocabulary;

constexpr size_t kMaxTextBytes = size_t{1} << 31;

Status out_of_range(TokenId id, size_t vocab_size) {
  return invalid_argument("token id " + std::to_string(id) + " is outside the vocabulary of " +
                          std::to_string(vocab_size) + " tokens");
}

// Requires: the lengths of check_vocabulary.
std::vector<SpecialMatcher::Special> collect_specials(const Vocabulary& v) {
  std::vector<SpecialMatcher::Special> specials;
  for (size_t id = 0; id < v.token_types.size(); ++id) {
    const auto type = static_cast<TokenType>(v.token_types[id]);
    if (v.pieces[id].empty() || !matched_whole(type)) continue;
    specials.push_back({v.pieces[id], static_cast<TokenId>(id), is_special(type)});
  }
  return specials;
}

// What the two kinds differ in: their encoding of plain text and the bytes of their tokens.
using Kind = std::variant<BpeVocabulary, SpmVocabulary>;

Result<Kind> create_kind(const Vocabulary& v) {
  if (v.model == "llama") {
    Result<SpmVocabulary> spm = SpmVocabulary::create(v);
    if (!spm.ok()) return spm.status();
    return Kind(std::move(spm).value());
  }
  Result<BpeVocabulary> bpe = BpeVocabulary::create(v);
  if (!bpe.ok()) return bpe.status();
  return Kind(std::move(bpe).value());
}

// Every piece by its spelling, except empty ones.
Result<PieceTable> index_pieces(const std::vector<std::string>& pieces) {
  PieceTable table(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].empty()) continue;
    const auto id = static_cast<TokenId>(i);
    const TokenId first = table.insert(pieces[i], id, [&pieces](TokenId other) {
      return std::string_view(pieces[static_cast<size_t>(other)]);
    });
    if (first != id) {
      return Status(StatusCode::corrupt, "tokenizer.ggml.tokens[" + std::to_string(id) +
                                             "] repeats the token " + std::to_string(first));
    }
  }
  return table;
}

}  // namespace

class Tokenizer::Impl {
 public:
  using Types = std::vector<std::pair<TokenId, int32_t>>;
  // `shown_types` are put in place of those that hold for encoding. Requires: check_vocabulary
  // passed; one type for each token.
  Impl(Vocabulary v, PieceTable pieces, Kind k, const Types& shown_types)
      : vocabulary(std::move(v)),
        adds_bos(vocabulary.add_bos.value_or(internal::adds_bos_unless_told(vocabulary))),
        adds_eos(vocabulary.add_eos.value_or(false)),
        table(std::move(pieces)),
        kind(std::move(k)),
        matcher(collect_specials(vocabulary)) {
    for (const auto& [id, shown] : shown_types) {
      vocabulary.token_types[static_cast<size_t>(id)] = shown;
    }
    // `kind` holds what it needs of these.
    vocabulary.merges = {};
    vocabulary.scores = {};
  }

  bool contains(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < vocabulary.pieces.size();
  }
  TokenType type(TokenId id) const {
    return static_cast<TokenType>(vocabulary.token_types[static_cast<size_t>(id)]);
  }
  std::string_view bytes(TokenId id) const {
    return std::visit([id](const auto& k) { return k.token_bytes(id); }, kind);
  }

  Result<std::vector<TokenId>> encode(std::string_view text,
                                      std::span<const SpecialMatcher::Range> trusted,
                                      const EncodeOptions& options) const;

  Vocabulary vocabulary;
  bool adds_bos, adds_eos;
  PieceTable table;
  Kind kind;
  SpecialMatcher matcher;
};

Result<std::vector<TokenId>> Tokenizer::Impl::encode(std::string_view text,
                                                     std::span<const SpecialMatcher::Range> trusted,
                                                     const EncodeOptions& options) const {
  if (text.size() >= kMaxTextBytes) {
    return invalid_argument("a text of " + std::to_string(text.size()) +
                            " bytes is too long to tokenize at once; cut it below 2 GiB");
  }
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 2);
  if (options.add_special && adds_bos) ids.push_back(*vocabulary.bos);
  const std::vector<SpecialMatcher::Fragment> fragments = matcher.split(text, trusted);
  const bool drop_missing = options.missing_byte == MissingByte::drop;
  Status status =
      std::visit([&](const auto& k) { return k.encode(text, fragments, drop_missing, ids); }, kind);
  if (!status.ok()) return status;
  if (options.add_special && adds_eos) ids.push_back(*vocabulary.eos);
  return ids;
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::create(Vocabulary vocabulary) {
  Status status = internal::check_vocabulary(vocabulary);
  if (!status.ok()) return status;
  internal::restrict_markers(vocabulary);
  Impl::Types shown_types;
  for (const TokenId id : vocabulary.template_markers) {
    int32_t& type = vocabulary.token_types[static_cast<size_t>(id)];
    shown_types.emplace_back(id, type);
    type = static_cast<int32_t>(TokenType::control);
  }
  Result<PieceTable> table = index_pieces(vocabulary.pieces);
  if (!table.ok()) return table.status();
  Result<Kind> kind = create_kind(vocabulary);
  if (!kind.ok()) return kind.status();
  return Tokenizer(std::make_unique<Impl>(std::move(vocabulary), std::move(table).value(),
                                          std::move(kind).value(), shown_types));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  const SpecialMatcher::Range all{0, text.size()};
  return impl_->encode(text, {&all, options.parse_special ? size_t{1} : size_t{0}}, options);
}

Result<std::vector<TokenId>> Tokenizer::encode_spans(std::span<const TextSpan> spans,
                                                     const EncodeOptions& options) const {
  std::string text;
  std::vector<SpecialMatcher::Range> trusted;
  for (const TextSpan& span : spans) {
    const size_t begin = text.size();
    text += span.text;
    if (!span.trusted || span.text.empty()) continue;
    if (!trusted.empty() && trusted.back().end == begin) {
      trusted.back().end = text.size();
    } else {
      trusted.push_back({begin, text.size()});
    }
  }
  return impl_->encode(text, trusted, options);
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->vocabulary.pieces.size()); }
std::optional<TokenId> Tokenizer::bos() const { return impl_->vocabulary.bos; }
std::optional<TokenId> Tokenizer::eos() const { return impl_->vocabulary.eos; }
bool Tokenizer::adds_bos() const { return impl_->adds_bos; }
bool Tokenizer::adds_eos() const { return impl_->adds_eos; }

bool Tokenizer::adds_space_prefix() const {
  return impl_->vocabulary.model == "llama" && impl_->vocabulary.add_space_prefix.value_or(true);
}

bool Tokenizer::has_double_bos(std::span<const TokenId> ids) const {
  return ids.size() >= 2 && bos() && ids[0] == *bos() && ids[1] == *bos();
}

Result<TokenType> Tokenizer::token_type(TokenId id) const {
  if (!impl_->contains(id)) return out_of_range(id, impl_->vocabulary.pieces.size());
  return impl_->type(id);
}

bool Tokenizer::is_marker(TokenId id) const {
  if (!impl_->contains(id)) return false;
  const std::vector<TokenId>& others = impl_->vocabulary.template_markers;
  return impl_->type(id) == TokenType::control ||
         std::find(others.begin(), others.end(), id) != others.end();
}

Result<std::string_view> Tokenizer::piece(TokenId id) const {
  if (!impl_->contains(id)) return out_of_range(id, impl_->vocabulary.pieces.size());
  return std::string_view(impl_->vocabulary.pieces[static_cast<size_t>(id)]);
}

Result<std::string_view> Tokenizer::token_bytes(TokenId id) const {
  if (!impl_->contains(id)) return out_of_range(id, impl_->vocabulary.pieces.size());
  return impl_->bytes(id);
}

std::optional<TokenId> Tokenizer::find(std::string_view piece) const {
  return impl_->table.find(piece, [this](TokenId id) {
    return std::string_view(impl_->vocabulary.pieces[static_cast<size_t>(id)]);
  });
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!impl_->contains(id)) return out_of_range(id, impl_->vocabulary.pieces.size());
    if (skip_special && is_special(impl_->type(id))) continue;
    bytes += impl_->bytes(id);
  }
  return bytes;
}

}  // namespace kvik
