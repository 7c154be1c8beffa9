// Any bytes as a text, and any bytes as a vocabulary: what was encoded decodes to the text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../support/tiny_vocabulary.h"
#include "kvik/core/check.h"
#include "kvik/model/pre_tokenizer.h"
#include "kvik/model/stream_decoder.h"
#include "kvik/model/tokenizer.h"
#include "model/normaliser.h"

namespace {

using namespace kvik;

std::string_view take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return line;
}

// Lines until an empty one: "1 piece" to "6 piece" is a token of that type; anything else is a
// merge for byte pairs and a normal token for merges by score. Every second of the latter shares
// its score with the one before.
Vocabulary read_vocabulary(bool scored, std::string_view& rest) {
  static const Vocabulary pairs_base = test::tiny_vocabulary();
  static const Vocabulary scored_base = test::tiny_spm_vocabulary();
  Vocabulary vocabulary = scored ? scored_base : pairs_base;
  const auto add = [&](std::string_view piece, int32_t type) {
    vocabulary.pieces.emplace_back(piece);
    vocabulary.token_types.push_back(type);
    if (scored) vocabulary.scores.push_back(-static_cast<float>(vocabulary.pieces.size() / 2));
  };
  for (std::string_view line = take_line(rest); !line.empty(); line = take_line(rest)) {
    if (line.size() >= 2 && line[0] >= '0' && line[0] <= '7' && line[1] == ' ') {
      add(line.substr(2), line[0] - '0');
    } else if (scored) {
      add(line, static_cast<int32_t>(TokenType::normal));
    } else {
      vocabulary.merges.emplace_back(line);
    }
  }
  return vocabulary;
}

// Without what merges by score may change: U+2581 becomes a space, or, where spaces are added, both
// go.
std::string without_spaces(std::string_view text, const Tokenizer& tokenizer, bool scored) {
  if (!scored) return std::string(text);
  std::string kept;
  while (!text.empty()) {
    const bool mark = text.starts_with(test::kSpaceMark);
    const char c = mark ? ' ' : text[0];
    if (c != ' ' || !tokenizer.adds_space_prefix()) kept += c;
    text.remove_prefix(mark ? 3 : 1);
  }
  return kept;
}

void check_pieces(PreTokenizer kind, std::string_view text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = piece_end(kind, text, begin);
    KVIK_CHECK(end > begin && end <= text.size(), "a piece ends after it begins, within the text");
    begin = end;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static constexpr const char* kNames[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
  static constexpr PreTokenizer kKinds[] = {PreTokenizer::gpt2, PreTokenizer::smollm,
                                            PreTokenizer::llama_bpe, PreTokenizer::qwen2};
  // Kinds 4 and 5 merge by score, without and with added spaces.
  const size_t kind = data[0] % 6;
  const bool scored = kind >= 4;
  const EncodeOptions options{.add_special = false, .parse_special = data[0] / 6 % 2 == 0};
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  Vocabulary vocabulary = read_vocabulary(scored, rest);
  if (scored) {
    vocabulary.add_space_prefix = kind == 5;
  } else {
    vocabulary.pre = kNames[kind];
    check_pieces(kKinds[kind], rest);
  }

  const Result<Tokenizer> created = Tokenizer::create(std::move(vocabulary));
  if (!created.ok()) return 0;
  const Tokenizer& tokenizer = created.value();
  const Result<std::vector<TokenId>> ids = tokenizer.encode(rest, options);
  KVIK_CHECK(ids.ok(), "the vocabulary has every byte");
  const std::string decoded = tokenizer.decode(ids.value()).value();
  if (kind == 3) {
    // Stretches between whole tokens are brought to form NFC, each by itself.
    KVIK_CHECK(internal::NfcText(decoded).view() == internal::NfcText(rest).view(),
               "a text that means the same comes back");
  } else {
    KVIK_CHECK(
        without_spaces(decoded, tokenizer, scored) == without_spaces(rest, tokenizer, scored),
        "the text comes back");
  }
  for (const TokenId id : ids.value()) {
    const TokenType type = tokenizer.token_type(id).value();
    KVIK_CHECK(type != TokenType::control || options.parse_special,
               "no control token unless asked for");
    KVIK_CHECK(type != TokenType::unused, "unused tokens never come from text");
  }
  StreamDecoder decoder(tokenizer, false);
  std::string streamed;
  for (const TokenId id : ids.value()) {
    const std::string part = decoder.push(id).value();
    KVIK_CHECK(to_valid_utf8(part) == part, "each part is whole characters");
    streamed += part;
  }
  KVIK_CHECK(streamed + decoder.flush() == to_valid_utf8(decoded),
             "the stream gives the same text");
  return 0;
}
