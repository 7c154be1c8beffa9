#include "kvik/model/vocabulary.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "kvik/model/gguf.h"
#include "model/gguf_parser.h"
#include "model/vocabulary_check.h"

namespace kvik {
namespace {

Status read_id(const GgufFile& file, std::string_view key, std::optional<TokenId>& id) {
  if (file.find(key) == nullptr) return {};
  const Result<int64_t> value = file.integer(key);
  if (!value.ok()) return value.status();
  if (*value < 0 || *value > std::numeric_limits<TokenId>::max()) {
    return {StatusCode::corrupt, quoted(key) + " is " + std::to_string(*value) +
                                     ", which is no token; the model file is damaged"};
  }
  id = static_cast<TokenId>(*value);
  return {};
}

Status read_flag(const GgufFile& file, std::string_view key, std::optional<bool>& flag) {
  if (file.find(key) == nullptr) return {};
  const Result<bool> value = file.boolean(key);
  if (!value.ok()) return value.status();
  flag = *value;
  return {};
}

Status read_strings(const GgufFile& file, std::string_view key, std::vector<std::string>& out) {
  const Result<std::vector<std::string_view>> values = file.strings(key);
  if (!values.ok()) return values.status();
  out.assign(values->begin(), values->end());
  return {};
}

Status read_token_types(const GgufFile& file, std::vector<int32_t>& types) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  if (file.find(kKey) == nullptr) return {};
  const Result<std::vector<int64_t>> values = file.integers(kKey);
  if (!values.ok()) return values.status();
  types.reserve(values->size());
  for (const int64_t value : *values) {
    if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
      return {StatusCode::corrupt, quoted(kKey) + " holds " + std::to_string(value) +
                                       ", which is no token type; the model file is damaged"};
    }
    types.push_back(static_cast<int32_t>(value));
  }
  return {};
}

Status read_names(const GgufFile& file, Vocabulary& vocabulary) {
  const Result<std::string_view> model = file.string("tokenizer.ggml.model");
  if (!model.ok()) return model.status();
  vocabulary.model = *model;
  const Result<std::string_view> pre = file.string_or("tokenizer.ggml.pre", "");
  if (!pre.ok()) return pre.status();
  vocabulary.pre = *pre;
  return {};
}

Status read_lists(const GgufFile& file, Vocabulary& vocabulary) {
  Status status = read_strings(file, "tokenizer.ggml.tokens", vocabulary.pieces);
  if (status.ok()) status = read_token_types(file, vocabulary.token_types);
  if (status.ok() && file.find("tokenizer.ggml.merges") != nullptr) {
    status = read_strings(file, "tokenizer.ggml.merges", vocabulary.merges);
  }
  if (status.ok() && file.find("tokenizer.ggml.scores") != nullptr) {
    Result<std::vector<float>> scores = file.reals("tokenizer.ggml.scores");
    if (!scores.ok()) return scores.status();
    vocabulary.scores = std::move(scores).value();
  }
  return status;
}

// Keys that name tokens or repeat what is read elsewhere, and change no id of a text.
constexpr std::array kOfNoEffect = {
    "model",
    "pre",
    "tokens",
    "token_type",
    "scores",
    "merges",
    "add_bos_token",
    "add_eos_token",
    "add_space_prefix",
    "bos_token_id",
    "eos_token_id",
    "unknown_token_id",
    "padding_token_id",
    "eot_token_id",
    "eom_token_id",
    "seperator_token_id",
    "separator_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
    "prefix_token_id",
    "suffix_token_id",
    "middle_token_id",
    "fim_pre_token_id",
    "fim_suf_token_id",
    "fim_mid_token_id",
    "fim_pad_token_id",
    "fim_rep_token_id",
    "fim_sep_token_id",
    // kinds of segments, which only BERT has
    "token_type_count",
};
// Flags that must be false.
constexpr std::array kRefusedFlags = {
    std::pair("add_sep_token", "adds a separator after a text"),
    std::pair("remove_extra_whitespaces", "removes spaces that follow one another"),
    std::pair("normalizer.lowercase", "makes text lower case"),
    std::pair("normalizer.strip_accents", "takes accents off"),
};

Status refused(std::string_view key, const std::string& what) {
  return unsupported(quoted(key) + " " + what +
                     "; kvik does not, and the tokens of a text would be others");
}

Status check_other_key(const GgufFile& file, const GgufEntry& entry, const Vocabulary& v) {
  const std::string_view name = entry.key.substr(std::string_view("tokenizer.ggml.").size());
  // Only merges by score put a space before a text.
  if (name == "add_space_prefix" && v.model == "gpt2" && v.add_space_prefix.value_or(false)) {
    return refused(entry.key, "is true: it puts a space before a text");
  }
  if (std::find(kOfNoEffect.begin(), kOfNoEffect.end(), name) != kOfNoEffect.end()) return {};
  for (const auto& [flag, what] : kRefusedFlags) {
    if (name != flag) continue;
    const Result<bool> value = file.boolean(entry.key);
    if (!value.ok()) return value.status();
    return *value ? refused(entry.key, std::string("is true: it ") + what) : Status();
  }
  if (name == "escape_whitespaces") {
    const Result<bool> value = file.boolean(entry.key);
    if (!value.ok()) return value.status();
    return *value || v.model == "gpt2"
               ? Status()
               : refused(entry.key, "is false: it leaves spaces as they are");
  }
  if (entry.value.is_array && entry.value.count == 0) return {};
  if (name == "precompiled_charsmap") {
    return refused(entry.key, "holds a table by which characters are replaced");
  }
  if (name == "suppress_tokens") return refused(entry.key, "names tokens that are never drawn");
  return unsupported(quoted(entry.key) +
                     " is a setting that kvik does not know and would ignore; the tokens of a text "
                     "could be others. Use another conversion of the model");
}

Status check_other_keys(const GgufFile& file, const Vocabulary& v) {
  for (const GgufEntry& entry : file.metadata()) {
    if (!entry.key.starts_with("tokenizer.ggml.")) continue;
    if (Status status = check_other_key(file, entry, v); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Result<Vocabulary> read_vocabulary(const GgufFile& file) {
  Vocabulary v;
  Status status = read_names(file, v);
  if (status.ok()) status = read_lists(file, v);
  if (status.ok()) status = read_id(file, "tokenizer.ggml.bos_token_id", v.bos);
  if (status.ok()) status = read_id(file, "tokenizer.ggml.eos_token_id", v.eos);
  if (status.ok()) status = read_id(file, "tokenizer.ggml.unknown_token_id", v.unknown);
  if (status.ok()) status = read_id(file, "tokenizer.ggml.padding_token_id", v.padding);
  if (status.ok()) status = read_flag(file, "tokenizer.ggml.add_bos_token", v.add_bos);
  if (status.ok()) status = read_flag(file, "tokenizer.ggml.add_eos_token", v.add_eos);
  if (status.ok()) {
    status = read_flag(file, "tokenizer.ggml.add_space_prefix", v.add_space_prefix);
  }
  if (status.ok()) status = internal::check_lists(v);
  if (status.ok()) status = check_other_keys(file, v);
  if (!status.ok()) return status;
  constexpr std::string_view kTemplate = "tokenizer.chat_template";
  if (const Result<std::string_view> chat = file.string_or(kTemplate, ""); chat.ok()) {
    v.template_markers = internal::find_template_markers(v, *chat);
  }
  return v;
}

}  // namespace kvik
