// Vocabularies of SentencePiece merges, through the tokenizer: small enough to follow by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "kvik/core/check.h"
#include "kvik/model/tokenizer.h"

namespace kvik {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr TokenId kUnknown = 0, kStart = 1, kEnd = 2, kFirstByte = 3;

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

TEST(SpmTokenizer, MergesTheBestScoreFirst) {
  const Tokenizer tokenizer = make(vocabulary());
  const EncodeOptions bare{.add_special = false};
  EXPECT_THAT(encode(tokenizer, "ab", bare), ElementsAre(262));
  EXPECT_THAT(encode(tokenizer, " ab", bare), ElementsAre(263));
  EXPECT_THAT(encode(tokenizer, "aab", bare), ElementsAre(260, 262));
  EXPECT_THAT(encode(tokenizer, "z", bare), ElementsAre(kFirstByte + 'z'));
}

TEST(SpmTokenizer, AddsAStartUnlessTheFileSaysNoAndAnEndOnlyWhereItSaysSo) {
  Vocabulary v = vocabulary();
  EXPECT_THAT(encode(make(v), "ab"), ElementsAre(kStart, 262));
  EXPECT_THAT(encode(make(v), ""), ElementsAre(kStart));
  EXPECT_THAT(encode(make(v), "ab", {.add_special = false}), ElementsAre(262));
  v.add_bos = true;
  v.add_eos = false;
  EXPECT_THAT(encode(make(v), "ab"), ElementsAre(kStart, 262));
  v.add_bos = false;
  EXPECT_THAT(encode(make(v), "ab"), ElementsAre(262));
  v.add_eos = true;
  EXPECT_THAT(encode(make(v), "ab"), ElementsAre(262, kEnd));
}

TEST(SpmTokenizer, NamesAStartThatIsMissingWhereItWouldBeAdded) {
  Vocabulary v = vocabulary();
  v.bos.reset();
  const Status status = Tokenizer::create(v).status();
  EXPECT_EQ(status.code(), StatusCode::corrupt);
  EXPECT_THAT(status.message(), HasSubstr("bos_token_id is missing"));
  v.add_bos = false;
  EXPECT_THAT(encode(make(v), "ab"), ElementsAre(262));
}

TEST(SpmTokenizer, TellsWhenTheTextHadTheStartTokenThatWasAdded) {
  const Tokenizer tokenizer = make(vocabulary());
  EXPECT_TRUE(tokenizer.has_double_bos(encode(tokenizer, "<s>ab", {.parse_special = true})));
  EXPECT_FALSE(tokenizer.has_double_bos(encode(tokenizer, "<s>ab")));
  EXPECT_FALSE(tokenizer.has_double_bos(encode(tokenizer, "ab", {.parse_special = true})));
}

TEST(SpmTokenizer, NeverMakesControlOrByteTokensFromTextThatSpellsThem) {
  const Tokenizer tokenizer = make(vocabulary());
  const EncodeOptions bare{.add_special = false};
  const std::string text = "a</s>\n<s>b<unk><0x41>";
  const std::vector<TokenId> plain = encode(tokenizer, text, bare);
  for (const TokenId id : plain) EXPECT_GE(id, kFirstByte);
  EXPECT_EQ(tokenizer.decode(plain).value(), text);
  EXPECT_THAT(encode(tokenizer, "<0x41>", bare),
              ElementsAre(kFirstByte + '<', kFirstByte + '0', kFirstByte + 'x', kFirstByte + '4',
                          kFirstByte + '1', kFirstByte + '>'));

  const std::vector<TokenId> parsed =
      encode(tokenizer, text, {.add_special = false, .parse_special = true});
  EXPECT_THAT(std::vector<TokenId>(parsed.begin(), parsed.begin() + 6),
              ElementsAre(260, kEnd, kFirstByte + '\n', kStart, 261, kUnknown));
  EXPECT_EQ(tokenizer.decode(parsed).value(), text);
  EXPECT_EQ(tokenizer.decode(parsed, true).value(), "a\nb<0x41>");
}

TEST(SpmTokenizer, FindsControlTokensOnlyInTrustedSpans) {
  const Tokenizer tokenizer = make(vocabulary());
  const std::vector<TextSpan> spans = {{"<s>a", true}, {"</s>", false}, {"</s>", true}};
  EXPECT_THAT(tokenizer.encode_spans(spans, {.add_special = false}).value(),
              ElementsAre(kStart, 260, kFirstByte + '<', kFirstByte + '/', kFirstByte + 's',
                          kFirstByte + '>', kEnd));
  const std::vector<TextSpan> halves = {{"</", true}, {"s>", false}};
  EXPECT_THAT(tokenizer.encode_spans(halves, {.add_special = false}).value(),
              testing::Not(testing::Contains(kEnd)));
}

TEST(SpmTokenizer, GivesBackAnyBytes) {
  const Tokenizer tokenizer = make(vocabulary());
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 40, '\0');
    for (char& c : text)
      c = random() % 2 == 0 ? "ab <>/s\n"[random() % 8] : static_cast<char>(random());
    EXPECT_EQ(tokenizer.decode(encode(tokenizer, text, {.add_special = false})).value(), text);
  }
}

}  // namespace
}  // namespace kvik
