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

namespace {

using namespace kvik;

std::string_view take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return line;
}

// Lines until an empty one: "1 piece" to "6 piece" is a token of that type, anything else a merge.
Vocabulary read_vocabulary(std::string_view& rest) {
  static const Vocabulary base = test::tiny_vocabulary();
  Vocabulary vocabulary = base;
  for (std::string_view line = take_line(rest); !line.empty(); line = take_line(rest)) {
    if (line.size() >= 2 && line[0] >= '0' && line[0] <= '7' && line[1] == ' ') {
      vocabulary.pieces.emplace_back(line.substr(2));
      vocabulary.token_types.push_back(line[0] - '0');
    } else {
      vocabulary.merges.emplace_back(line);
    }
  }
  return vocabulary;
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
  static constexpr const char* kNames[] = {"gpt-2", "smollm", "llama-bpe"};
  static constexpr PreTokenizer kKinds[] = {PreTokenizer::gpt2, PreTokenizer::smollm,
                                            PreTokenizer::llama_bpe};
  const size_t kind = data[0] % 3;
  const EncodeOptions options{.add_special = false, .parse_special = data[0] % 2 == 0};
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  Vocabulary vocabulary = read_vocabulary(rest);
  vocabulary.pre = kNames[kind];
  check_pieces(kKinds[kind], rest);

  const Result<Tokenizer> tokenizer = Tokenizer::create(std::move(vocabulary));
  if (!tokenizer.ok()) return 0;
  const Result<std::vector<TokenId>> ids = tokenizer.value().encode(rest, options);
  KVIK_CHECK(ids.ok(), "the vocabulary has every byte");
  KVIK_CHECK(tokenizer.value().decode(ids.value()).value() == rest, "the text comes back");
  if (!options.parse_special) {
    for (const TokenId id : ids.value()) {
      KVIK_CHECK(tokenizer.value().token_type(id).value() != TokenType::control,
                 "no control token unless asked for");
    }
  }
  StreamDecoder decoder(tokenizer.value(), false);
  std::string streamed;
  for (const TokenId id : ids.value()) streamed += decoder.push(id).value();
  KVIK_CHECK(streamed + decoder.flush() == to_valid_utf8(rest), "the stream gives the same text");
  return 0;
}
