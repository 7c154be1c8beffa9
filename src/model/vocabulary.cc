#include "kvik/model/vocabulary.h"

#include <cstdint>
#include <limits>
#include <string_view>

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
  if (!status.ok()) return status;
  return v;
}

}  // namespace kvik
