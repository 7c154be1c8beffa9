// The start token of SentencePiece vocabularies: when it is missing, and when it is there twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "kvik/core/check.h"
#include "kvik/model/tokenizer.h"

namespace kvik {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr TokenId kUnknown = 0, kStart = 1, kEnd = 2;

void add(Vocabulary& v, const std::string& piece, TokenType type, float score = 0) {
  v.pieces.push_back(piece);
  v.token_types.push_back(static_cast<int32_t>(type));
  v.scores.push_back(score);
}

// <unk>, <s>, </s>, the 256 bytes; then 259 "▁", 260 "a", 261 "b", 262 "ab", 263 "▁ab" and the
// user-defined 264 "<tag>".
Vocabulary vocabulary() {
  Vocabulary v;
  v.model = "llama";
  add(v, "<unk>", TokenType::unknown);
  add(v, "<s>", TokenType::control);
  add(v, "</s>", TokenType::control);
  for (int byte = 0; byte < 256; ++byte) {
    char piece[8];
    std::snprintf(piece, sizeof piece, "<0x%02X>", byte);
    add(v, piece, TokenType::byte);
  }
  add(v, "\xE2\x96\x81", TokenType::normal, -3);
  add(v, "a", TokenType::normal, -4);
  add(v, "b", TokenType::normal, -5);
  add(v, "ab", TokenType::normal, -1);
  add(v,
      "\xE2\x96\x81"
      "ab",
      TokenType::normal, -2);
  add(v, "<tag>", TokenType::user_defined);
  v.bos = kStart;
  v.eos = kEnd;
  v.unknown = kUnknown;
  v.add_space_prefix = false;
  return v;
}

Tokenizer make(Vocabulary v) {
  Result<Tokenizer> tokenizer = Tokenizer::create(std::move(v));
  KVIK_CHECK(tokenizer.ok(), tokenizer.status().message().c_str());
  return std::move(tokenizer).value();
}

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text,
                            const EncodeOptions& options = {}) {
  return tokenizer.encode(text, options).value();
}

TEST(SpmStartToken, NamesAStartThatIsMissingWhereItWouldBeAdded) {
  Vocabulary v = vocabulary();
  v.bos.reset();
  const Status status = Tokenizer::create(v).status();
  EXPECT_EQ(status.code(), StatusCode::corrupt);
  EXPECT_THAT(status.message(), HasSubstr("bos_token_id is missing"));
  v.add_bos = false;
  EXPECT_THAT(encode(make(v), "ab"), ElementsAre(262));
}

TEST(SpmStartToken, TellsWhenTheTextHadTheStartTokenThatWasAdded) {
  const Tokenizer tokenizer = make(vocabulary());
  EXPECT_TRUE(tokenizer.has_double_bos(encode(tokenizer, "<s>ab", {.parse_special = true})));
  EXPECT_FALSE(tokenizer.has_double_bos(encode(tokenizer, "<s>ab")));
  EXPECT_FALSE(tokenizer.has_double_bos(encode(tokenizer, "ab", {.parse_special = true})));
}

}  // namespace
}  // namespace kvik
