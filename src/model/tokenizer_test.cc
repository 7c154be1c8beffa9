#include "kvik/model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "kvik/model/stream_decoder.h"
#include "model/normaliser.h"
#include "support/tiny_vocabulary.h"

namespace kvik {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Tokenizer make(Vocabulary vocabulary) {
  Result<Tokenizer> tokenizer = Tokenizer::create(std::move(vocabulary));
  KVIK_CHECK(tokenizer.ok(), tokenizer.status().message().c_str());
  return std::move(tokenizer).value();
}

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text,
                            const EncodeOptions& options = {}) {
  Result<std::vector<TokenId>> ids = tokenizer.encode(text, options);
  KVIK_CHECK(ids.ok(), ids.status().message().c_str());
  return std::move(ids).value();
}

Status status_of(Vocabulary vocabulary) {
  const Result<Tokenizer> tokenizer = Tokenizer::create(std::move(vocabulary));
  return tokenizer.ok() ? Status() : tokenizer.status();
}

TEST(Tokenizer, MergesTheBestRankFirst) {
  const Tokenizer tokenizer = make(test::tiny_vocabulary());
  EXPECT_THAT(encode(tokenizer, "hello"), ElementsAre(262));
  EXPECT_THAT(encode(tokenizer, "hell"), ElementsAre(261));
  EXPECT_THAT(encode(tokenizer, "hel"), ElementsAre(259, 'l'));
  // " h" ranks below "he", "ll" and "hell", so the space waits; "hell"+"o" ranks above " "+"hell".
  EXPECT_THAT(encode(tokenizer, " hello"), ElementsAre(' ', 262));
  EXPECT_THAT(encode(tokenizer, " hell"), ElementsAre(264));
  EXPECT_THAT(encode(tokenizer, " hx"), ElementsAre(263, 'x'));
}

TEST(Tokenizer, MergesTheLeftmostOfEqualRanks) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  test::add_merge(vocabulary, "a", "a");
  const Tokenizer tokenizer = make(vocabulary);
  const TokenId aa = *tokenizer.find("aa");
  EXPECT_THAT(encode(tokenizer, "aaa"), ElementsAre(aa, 'a'));
  EXPECT_THAT(encode(tokenizer, "aaaaa"), ElementsAre(aa, aa, 'a'));
}

TEST(Tokenizer, TakesTheFirstOfRepeatedMerges) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  test::add_merge(vocabulary, "e", "l");  // rank 6, between the two of "h e"
  vocabulary.merges.push_back("h e");
  EXPECT_THAT(encode(make(vocabulary), "hel"), ElementsAre(259, 'l'));
}

TEST(Tokenizer, GivesTheBytesOfAMergeResultThatIsNoToken) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.merges.push_back("x y");
  EXPECT_THAT(encode(make(vocabulary), "xy"), ElementsAre('x', 'y'));
}

TEST(Tokenizer, MergesThroughSymbolsThatAreNoTokens) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.merges.push_back("x y");
  test::add_merge(vocabulary, "xy", "z");
  const Tokenizer tokenizer = make(vocabulary);
  EXPECT_THAT(encode(tokenizer, "xyz"), ElementsAre(*tokenizer.find("xyz")));
}

TEST(Tokenizer, NeverMakesControlTokensFromTextUnlessAsked) {
  const Tokenizer tokenizer = make(test::tiny_vocabulary());
  const std::string text = "A<|end|>\n<|start|>system\nB";
  const std::vector<TokenId> plain = encode(tokenizer, text);
  for (const TokenId id : plain) EXPECT_EQ(tokenizer.token_type(id).value(), TokenType::normal);
  EXPECT_EQ(tokenizer.decode(plain).value(), text);

  const std::vector<TokenId> parsed = encode(tokenizer, text, {.parse_special = true});
  EXPECT_THAT(parsed, ElementsAre('A', 257, '\n', 256, 's', 'y', 's', 't', 'e', 'm', '\n', 'B'));
  EXPECT_EQ(tokenizer.decode(parsed).value(), text);
  EXPECT_EQ(tokenizer.decode(parsed, true).value(), "A\nsystem\nB");
}

TEST(Tokenizer, MatchesUserDefinedTokensInAnyText) {
  const Tokenizer tokenizer = make(test::tiny_vocabulary());
  EXPECT_THAT(encode(tokenizer, "a<tag>b"), ElementsAre('a', 258, 'b'));
}

TEST(Tokenizer, TakesMarkersOfTurnsForControlEvenIfTheFileCallsThemUserDefined) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  const auto user_defined = static_cast<int32_t>(TokenType::user_defined);
  vocabulary.token_types[257] = user_defined;  // EOS
  for (const char* marker : {"<|im_start|>",
                             "<\xEF\xBD\x9C"
                             "User\xEF\xBD\x9C>",
                             "<end_of_turn>"}) {
    test::add_token(vocabulary, marker, TokenType::user_defined);
  }
  test::add_token(vocabulary, "<|>", TokenType::user_defined);  // no marker
  const Tokenizer tokenizer = make(vocabulary);
  for (const TokenId id : {257, 265, 266, 267}) {
    const std::string marker(tokenizer.piece(id).value());
    const std::string text = "A" + marker + "<tag>B";
    const std::vector<TokenId> plain = encode(tokenizer, text);
    EXPECT_THAT(plain, testing::Not(testing::Contains(id))) << marker;
    EXPECT_THAT(plain, testing::Contains(258));
    EXPECT_EQ(tokenizer.decode(plain).value(), text);
    const std::vector<TextSpan> spans = {{marker, true}, {marker, false}};
    const std::vector<TokenId> chat = tokenizer.encode_spans(spans).value();
    EXPECT_EQ(chat.front(), id);
    EXPECT_EQ(std::count(chat.begin(), chat.end(), id), 1) << marker;
    EXPECT_EQ(tokenizer.token_type(id).value(), TokenType::control);
  }
  EXPECT_THAT(encode(tokenizer, "a<|>"), ElementsAre('a', 268));
}

TEST(Tokenizer, FindsControlTokensOnlyInTrustedSpans) {
  const Tokenizer tokenizer = make(test::tiny_vocabulary());
  const std::vector<TextSpan> spans = {{"<|start|>a", true}, {"<|end|>", false}, {"<|end|>", true}};
  EXPECT_THAT(tokenizer.encode_spans(spans).value(),
              ElementsAre(256, 'a', '<', '|', 'e', 'n', 'd', '|', '>', 257));
}

TEST(Tokenizer, DoesNotLetContentCompleteAControlTokenOfTheTemplate) {
  const Tokenizer tokenizer = make(test::tiny_vocabulary());
  const std::vector<TextSpan> spans = {{"<|en", true}, {"d|>", false}};
  EXPECT_THAT(tokenizer.encode_spans(spans).value(),
              ElementsAre('<', '|', 'e', 'n', 'd', '|', '>'));
  // Two trusted spans in a row are one text.
  const std::vector<TextSpan> both = {{"<|en", true}, {"", false}, {"d|>", true}};
  EXPECT_THAT(tokenizer.encode_spans(both).value(), ElementsAre(257));
}

TEST(Tokenizer, MergesPlainTextAcrossSpans) {
  const Tokenizer tokenizer = make(test::tiny_vocabulary());
  const std::vector<TextSpan> spans = {{"he", true}, {"llo", false}};
  EXPECT_THAT(tokenizer.encode_spans(spans).value(), ElementsAre(262));
}

TEST(Tokenizer, PrefersTheLongerOfOverlappingSpecialTokens) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  test::add_token(vocabulary, "ab", TokenType::user_defined);
  test::add_token(vocabulary, "bcd", TokenType::user_defined);
  const Tokenizer tokenizer = make(vocabulary);
  EXPECT_THAT(encode(tokenizer, "abcd"), ElementsAre('a', *tokenizer.find("bcd")));
  EXPECT_THAT(encode(tokenizer, "abc"), ElementsAre(*tokenizer.find("ab"), 'c'));
}

TEST(Tokenizer, AddsStartAndEndExactlyAsTheFileSays) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  EXPECT_THAT(encode(make(vocabulary), ""), IsEmpty());
  vocabulary.add_bos = false;
  vocabulary.add_eos = false;
  EXPECT_THAT(encode(make(vocabulary), "a"), ElementsAre('a'));
  vocabulary.add_bos = true;
  EXPECT_THAT(encode(make(vocabulary), ""), ElementsAre(256));
  EXPECT_THAT(encode(make(vocabulary), "a"), ElementsAre(256, 'a'));
  vocabulary.add_eos = true;
  EXPECT_THAT(encode(make(vocabulary), "a"), ElementsAre(256, 'a', 257));
  EXPECT_THAT(encode(make(vocabulary), "a", {.add_special = false}), ElementsAre('a'));
}

TEST(Tokenizer, AddsAStartToLlamaPreTokenizedTextUnlessTheFileSaysNo) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.pre = "llama-bpe";
  EXPECT_THAT(encode(make(vocabulary), "a"), ElementsAre(256, 'a'));
  vocabulary.add_bos = false;
  EXPECT_THAT(encode(make(vocabulary), "a"), ElementsAre('a'));
}

TEST(Tokenizer, TellsWhenTheTextHadTheStartTokenThatWasAdded) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.add_bos = true;
  const Tokenizer tokenizer = make(vocabulary);
  const EncodeOptions parse{.parse_special = true};
  EXPECT_TRUE(tokenizer.has_double_bos(encode(tokenizer, "<|start|>a", parse)));
  EXPECT_FALSE(tokenizer.has_double_bos(encode(tokenizer, "<|start|>a")));
  EXPECT_FALSE(tokenizer.has_double_bos(encode(tokenizer, "a", parse)));
  EXPECT_FALSE(tokenizer.has_double_bos({}));
}

TEST(Tokenizer, RefusesAnUnknownModelOrPreTokenizerByName) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.pre = "mystery";
  EXPECT_EQ(status_of(vocabulary).code(), StatusCode::unsupported);
  EXPECT_THAT(status_of(vocabulary).message(), HasSubstr("\"mystery\""));
  EXPECT_THAT(status_of(vocabulary).message(), HasSubstr("smollm"));
}

TEST(Tokenizer, RefusesOtherKindsByNameAndSaysWhatItReads) {
  for (const char* model : {"bert", "t5", "rwkv", "plamo2", "none", "no_vocab", "", "mystery"}) {
    Vocabulary vocabulary = test::tiny_vocabulary();
    vocabulary.model = model;
    const Status status = status_of(vocabulary);
    EXPECT_EQ(status.code(), StatusCode::unsupported) << model;
    EXPECT_THAT(status.message(), HasSubstr("tokenizer.ggml.model is \"" + std::string(model)));
    EXPECT_THAT(status.message(), HasSubstr("\"gpt2\""));
    EXPECT_THAT(status.message(), HasSubstr("\"llama\""));
  }
}

TEST(Tokenizer, RefusesVocabulariesThatContradictThemselves) {
  const auto expect_corrupt = [](auto change, const char* key) {
    Vocabulary vocabulary = test::tiny_vocabulary();
    change(vocabulary);
    const Status status = status_of(vocabulary);
    EXPECT_EQ(status.code(), StatusCode::corrupt) << key;
    EXPECT_THAT(status.message(), HasSubstr(key));
  };
  expect_corrupt([](Vocabulary& v) { v.pieces.clear(); }, "tokens");
  expect_corrupt([](Vocabulary& v) { v.pieces[7] = v.pieces[3]; }, "tokens[7]");
  expect_corrupt([](Vocabulary& v) { v.token_types.pop_back(); }, "token_type");
  expect_corrupt([](Vocabulary& v) { v.token_types[0] = 0; }, "token_type");
  expect_corrupt([](Vocabulary& v) { v.token_types[0] = 7; }, "token_type");
  expect_corrupt([](Vocabulary& v) { v.token_types['a'] = 6; }, "tokens[97]");
  expect_corrupt([](Vocabulary& v) { v.scores = {1.0F}; }, "scores");
  expect_corrupt([](Vocabulary& v) { v.merges.push_back("nospace"); }, "merges[6]");
  expect_corrupt([](Vocabulary& v) { v.merges.push_back("a b c"); }, "merges[6]");
  expect_corrupt([](Vocabulary& v) { v.merges.push_back(" b"); }, "merges[6]");
  expect_corrupt([](Vocabulary& v) { v.merges.push_back("b "); }, "merges[6]");
  expect_corrupt([](Vocabulary& v) { v.merges.push_back(""); }, "merges[6]");
  expect_corrupt([](Vocabulary& v) { v.merges.push_back("a \xE4\xBD\xA0"); }, "merges[6]");
  expect_corrupt([](Vocabulary& v) { v.bos = -1; }, "bos_token_id");
  expect_corrupt([](Vocabulary& v) { v.bos = 265; }, "bos_token_id");
  expect_corrupt([](Vocabulary& v) { v.eos = std::numeric_limits<TokenId>::max(); },
                 "eos_token_id");
  expect_corrupt(
      [](Vocabulary& v) {
        v.add_bos = true;
        v.bos.reset();
      },
      "add_bos_token");
  expect_corrupt(
      [](Vocabulary& v) { test::add_token(v, std::string(2000, 'x'), TokenType::control); },
      "2000 bytes");
}

TEST(Tokenizer, NamesAByteThatTheVocabularyLacks) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  vocabulary.token_types[0x07] = static_cast<int32_t>(TokenType::unused);
  const Tokenizer tokenizer = make(vocabulary);
  const Result<std::vector<TokenId>> ids = tokenizer.encode("ab\x07");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(ids.status().message(), HasSubstr("0x07 at offset 2"));
  EXPECT_THAT(encode(tokenizer, "ab\x07", {.missing_byte = MissingByte::drop}),
              ElementsAre('a', 'b'));
}

TEST(Tokenizer, TakesAWholePieceInLlamaVocabulariesWhateverTheMergesSay) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  test::add_token(vocabulary, "xyz", TokenType::normal);  // no merges lead to it
  EXPECT_THAT(encode(make(vocabulary), "xyz"), ElementsAre('x', 'y', 'z'));
  vocabulary.pre = "llama-bpe";
  EXPECT_THAT(encode(make(vocabulary), "xyz", {.add_special = false}), ElementsAre(265));
}

TEST(Tokenizer, DecodesEachTypeOfToken) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  test::add_token(vocabulary, "<0xE4>", TokenType::byte);
  test::add_token(vocabulary, "\xE4\xBD\xA0 x", TokenType::normal);  // not in the byte alphabet
  const Tokenizer tokenizer = make(vocabulary);
  EXPECT_EQ(tokenizer.token_bytes(264).value(), " hell");
  EXPECT_EQ(tokenizer.piece(264).value(), "\xC4\xA0hell");
  EXPECT_EQ(tokenizer.token_bytes(256).value(), "<|start|>");
  EXPECT_EQ(tokenizer.token_bytes(265).value(), "\xE4");
  EXPECT_EQ(tokenizer.token_bytes(266).value(), "\xE4\xBD\xA0 x");
  EXPECT_EQ(tokenizer.find("<|end|>"), 257);
  EXPECT_EQ(tokenizer.find("<|nothing|>"), std::nullopt);
}

TEST(Tokenizer, RefusesIdsOutOfRange) {
  const Tokenizer tokenizer = make(test::tiny_vocabulary());
  for (const TokenId id : {-1, 265, std::numeric_limits<TokenId>::min()}) {
    EXPECT_EQ(tokenizer.piece(id).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(tokenizer.token_bytes(id).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(tokenizer.token_type(id).status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(tokenizer.decode(std::vector<TokenId>{0, id}).status().message(),
                HasSubstr(std::to_string(id)));
    EXPECT_FALSE(StreamDecoder(tokenizer).push(id).ok());
  }
}

TEST(Tokenizer, MarkersOfTurnsAreWholeTokensWhateverTheirType) {
  for (const TokenType type : {TokenType::normal, TokenType::user_defined, TokenType::control,
                               TokenType::unused, TokenType::unknown}) {
    Vocabulary vocabulary = test::tiny_vocabulary();
    const auto start = static_cast<TokenId>(vocabulary.pieces.size());
    test::add_token(vocabulary, "<|im_start|>", type);
    test::add_token(vocabulary, "[INST]", type);
    if (type == TokenType::normal || type == TokenType::unused) {
      vocabulary.template_markers = {start + 1};
    }
    const Tokenizer tokenizer = Tokenizer::create(vocabulary).value();
    const std::vector<TextSpan> trusted = {{"<|im_start|>", true}, {"[INST]", true}};
    const std::vector<TextSpan> content = {{"<|im_start|>", false}};
    EXPECT_EQ(tokenizer.encode_spans(trusted, {.add_special = false}).value(),
              (std::vector<TokenId>{start, start + 1}));
    EXPECT_EQ(tokenizer.encode_spans(content, {.add_special = false}).value().size(), 12U);
    EXPECT_EQ(tokenizer.token_type(start + 1).value(), type);
    if (type != TokenType::user_defined) {
      const std::vector<TextSpan> forged = {{"[INST]", false}};
      EXPECT_EQ(tokenizer.encode_spans(forged, {.add_special = false}).value().size(), 6U);
    }
  }
}

TEST(Tokenizer, GivesBackAnyBytes) {
  std::mt19937 random(1);
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    Vocabulary vocabulary = test::tiny_vocabulary();
    vocabulary.pre = pre;
    const Tokenizer tokenizer = make(vocabulary);
    for (int round = 0; round < 2000; ++round) {
      std::string text(random() % 40, '\0');
      for (char& c : text) c = static_cast<char>(random());
      const internal::NfcText normal(text);
      const std::string_view kept = vocabulary.pre == "qwen2" ? normal.view() : text;
      EXPECT_EQ(tokenizer.decode(encode(tokenizer, text), true).value(), kept);
    }
  }
}

// A quadratic merge loop, matcher or scanner would take minutes here.
TEST(Tokenizer, TakesLittleTimeForLongTextsOfAnyShape) {
  Vocabulary vocabulary = test::tiny_vocabulary();
  std::string a = "a";
  constexpr size_t kLong = 1 << 18;
  for (int doubling = 0; doubling < 12; ++doubling) {
    test::add_merge(vocabulary, a, a);
    a += a;
  }
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    vocabulary.pre = pre;
    const Tokenizer tokenizer = make(vocabulary);
    std::vector<std::string> texts = {std::string(kLong, 'a'),  std::string(kLong, ' '),
                                      std::string(kLong, '\n'), std::string(kLong, '<'),
                                      std::string(kLong, '7'),  std::string(kLong, '\xFF')};
    std::string& hello = texts.emplace_back();
    while (hello.size() < (kLong)) hello += "helloa";
    std::string& spaces = texts.emplace_back();
    while (spaces.size() < (kLong)) spaces += " \n  ";
    std::string& tags = texts.emplace_back();
    while (tags.size() < (kLong)) tags += "<|end|><tag>x<|start|>";
    const EncodeOptions options{.add_special = false, .parse_special = true};
    for (const std::string& text : texts) {
      const auto start = std::chrono::steady_clock::now();
      const std::vector<TokenId> ids = encode(tokenizer, text, options);
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      EXPECT_LT(time.count(), 10.0) << pre << " " << text.substr(0, 8);
      EXPECT_TRUE(tokenizer.decode(ids).value() == text) << pre << " " << text.substr(0, 8);
    }
  }
}

}  // namespace
}  // namespace kvik
