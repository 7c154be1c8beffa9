#include "model/vocabulary_check.h"

#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "kvik/model/pre_tokenizer.h"

namespace kvik::internal {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";

Status corrupt(std::string_view key, const std::string& what) {
  return {StatusCode::corrupt, std::string(kPrefix) + std::string(key) + what};
}

// Kinds that other programs know.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kOtherKinds = {{
    {"bert", "word pieces"},
    {"t5", "unigrams"},
    {"rwkv", "greedy matches in a tree of tokens"},
    {"plamo2", "table-driven longest matches"},
    {"no_vocab", "no vocabulary in the file"},
}};

Status check_kind(const std::string& model) {
  if (model == "gpt2" || model == "llama") return {};
  std::string message = "tokenizer.ggml.model is \"" + model + "\"";
  for (const auto& [name, meaning] : kOtherKinds) {
    if (model == name || (model == "none" && name == "no_vocab")) {
      message += " (" + std::string(meaning) + ")";
    }
  }
  return unsupported(message +
                     ", which is not supported; use a model whose tokenizer is \"gpt2\" "
                     "(byte-level byte pairs) or \"llama\" (SentencePiece merges by score)");
}

Status check_id(const char* key, std::optional<TokenId> id, size_t vocab_size) {
  if (!id || (*id >= 0 && static_cast<size_t>(*id) < vocab_size)) return {};
  return corrupt(key, " is " + std::to_string(*id) + ", outside the vocabulary of " +
                          std::to_string(vocab_size) + " tokens");
}

Status check_markers(const Vocabulary& v) {
  for (const TokenId id : v.template_markers) {
    if (id >= 0 && static_cast<size_t>(id) < v.pieces.size() &&
        !v.pieces[static_cast<size_t>(id)].empty() &&
        v.pieces[static_cast<size_t>(id)].size() <= kMaxMatchedBytes) {
      continue;
    }
    return invalid_argument("template_markers holds " + std::to_string(id) +
                            ", which is no token that can be matched as a whole");
  }
  return {};
}

Status check_added(const char* key, std::optional<bool> adds, bool unless_told, const char* id_key,
                   std::optional<TokenId> id) {
  if (!adds.value_or(unless_told) || id) return {};
  const std::string_view is_true = adds ? " is true" : " is missing, which here means true,";
  return corrupt(key, std::string(is_true) + " but " + std::string(kPrefix) + id_key +
                          " is missing; add that, or set the flag to false");
}

Status check_token(const Vocabulary& v, size_t id) {
  const int32_t type = v.token_types.empty() ? 1 : v.token_types[id];
  if (type < 1 || type > 6) {
    return corrupt("token_type", " has the value " + std::to_string(type) + "; known are 1 to 6");
  }
  const size_t length = v.pieces[id].size();
  // Merges by score look pieces up by their bytes; merges of pairs do not.
  const bool limited = v.model == "llama" || matched_whole(static_cast<TokenType>(type));
  if (!limited || length <= kMaxMatchedBytes) return {};
  return corrupt("tokens", "[" + std::to_string(id) + "] has " + std::to_string(length) +
                               " bytes; at most " + std::to_string(kMaxMatchedBytes) +
                               " are allowed for a token that is matched as a whole");
}

Status check_llama(const Vocabulary& v) {
  const auto missing = [](const char* key, const char* why) {
    return corrupt(key, std::string(" is missing; a \"llama\" vocabulary needs it to ") + why +
                            "; convert the model again");
  };
  if (v.scores.empty()) return missing("scores", "order its merges");
  if (v.token_types.empty()) return missing("token_type", "tell bytes and control tokens apart");
  return {};
}

}  // namespace

Status check_lists(const Vocabulary& v) {
  const size_t size = v.pieces.size();
  if (size > kMaxVocabularyTokens) {
    return corrupt("tokens", " has " + std::to_string(size) + " entries; at most " +
                                 std::to_string(kMaxVocabularyTokens) + " are allowed");
  }
  const auto wrong_count = [size](const char* key, size_t count) {
    return corrupt(key, " has " + std::to_string(count) + " entries for " + std::to_string(size) +
                            " tokens; the model file is damaged");
  };
  if (!v.scores.empty() && v.scores.size() != size) return wrong_count("scores", v.scores.size());
  if (!v.token_types.empty() && v.token_types.size() != size) {
    return wrong_count("token_type", v.token_types.size());
  }
  for (size_t id = 0; id < v.scores.size(); ++id) {
    if (std::isfinite(v.scores[id])) continue;
    return corrupt("scores",
                   "[" + std::to_string(id) + "] is not finite; the model file is damaged");
  }
  return {};
}

bool adds_bos_unless_told(const Vocabulary& v) {
  if (v.model == "llama") return true;
  const Result<PreTokenizer> pre = pre_tokenizer_from_name(v.pre);
  return pre.ok() && *pre == PreTokenizer::llama_bpe;
}

Status check_vocabulary(const Vocabulary& v) {
  if (Status status = check_kind(v.model); !status.ok()) return status;
  const size_t size = v.pieces.size();
  if (size == 0) return corrupt("tokens", " is empty");
  if (Status status = check_lists(v); !status.ok()) return status;
  if (v.model == "llama") {
    if (Status status = check_llama(v); !status.ok()) return status;
  }
  for (size_t id = 0; id < size; ++id) {
    if (Status status = check_token(v, id); !status.ok()) return status;
  }
  for (Status& status : std::array{
           check_id("bos_token_id", v.bos, size), check_id("eos_token_id", v.eos, size),
           check_id("unknown_token_id", v.unknown, size),
           check_id("padding_token_id", v.padding, size), check_markers(v),
           check_added("add_bos_token", v.add_bos, adds_bos_unless_told(v), "bos_token_id", v.bos),
           check_added("add_eos_token", v.add_eos, false, "eos_token_id", v.eos)}) {
    if (!status.ok()) return std::move(status);
  }
  return {};
}

}  // namespace kvik::internal
