#include "kvik/model/tokenizer.h"

#include <limits>
#include <utility>

#include "kvik/model/pre_tokenizer.h"
#include "model/bpe_vocabulary.h"
#include "model/special_matcher.h"

namespace kvik {
namespace {

using internal::BpeEncoder;
using internal::BpeVocabulary;
using internal::SpecialMatcher;

constexpr size_t kMaxTextBytes = size_t{1} << 31;
// Finding a token in a text may look at so many bytes at each position.
constexpr size_t kMaxSpecialBytes = 1024;

Status out_of_range(TokenId id, size_t vocab_size) {
  return invalid_argument("token id " + std::to_string(id) + " is outside the vocabulary of " +
                          std::to_string(vocab_size) + " tokens");
}

bool is_special(TokenType type) { return type == TokenType::control || type == TokenType::unknown; }

// Found in a text as a whole string rather than merged from bytes.
bool matched_whole(TokenType type) { return is_special(type) || type == TokenType::user_defined; }

Status check_id(const char* key, std::optional<TokenId> id, size_t vocab_size) {
  if (!id || (*id >= 0 && static_cast<size_t>(*id) < vocab_size)) return {};
  return {StatusCode::corrupt, std::string("tokenizer.ggml.") + key + " is " + std::to_string(*id) +
                                   ", outside the vocabulary of " + std::to_string(vocab_size) +
                                   " tokens"};
}

Status check_added(const char* key, std::optional<bool> adds, const char* id_key,
                   std::optional<TokenId> id) {
  if (!adds.value_or(false) || id) return {};
  return {StatusCode::corrupt, std::string("tokenizer.ggml.") + key +
                                   " is true but tokenizer.ggml." + id_key + " is missing"};
}

Status check_vocabulary(const Vocabulary& v) {
  const size_t size = v.pieces.size();
  const auto wrong_count = [size](const char* key, size_t count) {
    return Status(StatusCode::corrupt, std::string("tokenizer.ggml.") + key + " has " +
                                           std::to_string(count) + " entries for " +
                                           std::to_string(size) + " tokens");
  };
  if (v.model != "gpt2") {
    return unsupported("tokenizer model \"" + v.model + "\" is not supported; supported: gpt2");
  }
  if (size == 0) return {StatusCode::corrupt, "tokenizer.ggml.tokens is empty"};
  if (size > static_cast<size_t>(std::numeric_limits<TokenId>::max()) / 4) {
    return {StatusCode::corrupt, "tokenizer.ggml.tokens has more entries than ids allow"};
  }
  if (!v.scores.empty() && v.scores.size() != size) return wrong_count("scores", v.scores.size());
  if (!v.token_types.empty() && v.token_types.size() != size) {
    return wrong_count("token_type", v.token_types.size());
  }
  for (size_t id = 0; id < v.token_types.size(); ++id) {
    const int32_t type = v.token_types[id];
    if (type < 1 || type > 6) {
      return {StatusCode::corrupt, "tokenizer.ggml.token_type has the value " +
                                       std::to_string(type) + "; known are 1 to 6"};
    }
    if (matched_whole(static_cast<TokenType>(type)) && v.pieces[id].size() > kMaxSpecialBytes) {
      return {StatusCode::corrupt, "tokenizer.ggml.tokens[" + std::to_string(id) +
                                       "] is a control or user-defined token of " +
                                       std::to_string(v.pieces[id].size()) + " bytes; at most " +
                                       std::to_string(kMaxSpecialBytes) + " are allowed"};
    }
  }
  for (const Status& status :
       {check_id("bos_token_id", v.bos, size), check_id("eos_token_id", v.eos, size),
        check_id("unknown_token_id", v.unknown, size),
        check_id("padding_token_id", v.padding, size),
        check_added("add_bos_token", v.add_bos, "bos_token_id", v.bos),
        check_added("add_eos_token", v.add_eos, "eos_token_id", v.eos)}) {
    if (!status.ok()) return status;
  }
  return {};
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

}  // namespace

class Tokenizer::Impl {
 public:
  // Requires: check_vocabulary passed.
  Impl(Vocabulary v, PreTokenizer pre, BpeVocabulary bpe)
      : vocabulary(std::move(v)),
        pre_tokenizer(pre),
        bpe_vocabulary(std::move(bpe)),
        matcher(collect_specials(vocabulary)) {}

  bool contains(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < vocabulary.pieces.size();
  }
  TokenType type(TokenId id) const {
    if (vocabulary.token_types.empty()) return TokenType::normal;
    return static_cast<TokenType>(vocabulary.token_types[static_cast<size_t>(id)]);
  }

  Result<std::vector<TokenId>> encode(std::string_view text,
                                      std::span<const SpecialMatcher::Range> trusted,
                                      const EncodeOptions& options) const;

  Vocabulary vocabulary;
  PreTokenizer pre_tokenizer;
  BpeVocabulary bpe_vocabulary;
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
  if (options.add_special && vocabulary.add_bos.value_or(false)) ids.push_back(*vocabulary.bos);
  BpeEncoder encoder(bpe_vocabulary, text, ids);
  for (const SpecialMatcher::Fragment& fragment : matcher.split(text, trusted)) {
    if (fragment.is_token) {
      ids.push_back(fragment.id);
      continue;
    }
    const std::string_view plain = text.substr(0, fragment.end).substr(fragment.begin);
    for (size_t begin = 0; begin < plain.size();) {
      const size_t end = piece_end(pre_tokenizer, plain, begin);
      const Status status = encoder.encode_piece(fragment.begin + begin, fragment.begin + end,
                                                 options.missing_byte == MissingByte::drop);
      if (!status.ok()) return status;
      begin = end;
    }
  }
  if (options.add_special && vocabulary.add_eos.value_or(false)) ids.push_back(*vocabulary.eos);
  return ids;
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::create(Vocabulary vocabulary) {
  const Status status = check_vocabulary(vocabulary);
  if (!status.ok()) return status;
  const Result<PreTokenizer> pre = pre_tokenizer_from_name(vocabulary.pre);
  if (!pre.ok()) return pre.status();
  // Vocabularies of this kind take a piece that is a token as that token, whatever the merges say.
  const bool whole_pieces = pre.value() == PreTokenizer::llama_bpe;
  Result<BpeVocabulary> bpe = BpeVocabulary::create(vocabulary, whole_pieces);
  if (!bpe.ok()) return bpe.status();
  return Tokenizer(
      std::make_unique<Impl>(std::move(vocabulary), pre.value(), std::move(bpe).value()));
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
bool Tokenizer::adds_bos() const { return impl_->vocabulary.add_bos.value_or(false); }
bool Tokenizer::adds_eos() const { return impl_->vocabulary.add_eos.value_or(false); }

bool Tokenizer::has_double_bos(std::span<const TokenId> ids) const {
  return ids.size() >= 2 && bos() && ids[0] == *bos() && ids[1] == *bos();
}

Result<TokenType> Tokenizer::token_type(TokenId id) const {
  if (!impl_->contains(id)) return out_of_range(id, impl_->vocabulary.pieces.size());
  return impl_->type(id);
}

Result<std::string_view> Tokenizer::piece(TokenId id) const {
  if (!impl_->contains(id)) return out_of_range(id, impl_->vocabulary.pieces.size());
  return std::string_view(impl_->vocabulary.pieces[static_cast<size_t>(id)]);
}

Result<std::string_view> Tokenizer::token_bytes(TokenId id) const {
  if (!impl_->contains(id)) return out_of_range(id, impl_->vocabulary.pieces.size());
  return impl_->bpe_vocabulary.token_bytes(id);
}

std::optional<TokenId> Tokenizer::find(std::string_view piece) const {
  return impl_->bpe_vocabulary.find_piece(piece);
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!impl_->contains(id)) return out_of_range(id, impl_->vocabulary.pieces.size());
    if (skip_special && is_special(impl_->type(id))) continue;
    bytes += impl_->bpe_vocabulary.token_bytes(id);
  }
  return bytes;
}

}  // namespace kvik
