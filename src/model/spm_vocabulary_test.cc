// Tokenizer over vocabularies of the kind "llama".
#include "model/spm_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "kvik/model/stream_decoder.h"
#include "kvik/model/tokenizer.h"
#include "support/tiny_vocabulary.h"

namespace kvik {
namespace {

using test::add_scored;
using test::spm_byte;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kMark = test::kSpaceMark;

Tokenizer make(Vocabulary vocabulary) {
  Result<Tokenizer> tokenizer = Tokenizer::create(std::move(vocabulary));
  KVIK_CHECK(tokenizer.ok(), tokenizer.status().message().c_str());
  return std::move(tokenizer).value();
}

constexpr EncodeOptions kPlain{.add_special = false};

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text,
                            const EncodeOptions& options = kPlain) {
  Result<std::vector<TokenId>> ids = tokenizer.encode(text, options);
  KVIK_CHECK(ids.ok(), ids.status().message().c_str());
  return std::move(ids).value();
}

TEST(SpmTokenizer, MergesTheBestScoreFirst) {
  const Tokenizer tokenizer = make(test::tiny_spm_vocabulary());
  // "ll" -1, "he" -2, "hell" -3, "hello" -5.
  EXPECT_THAT(encode(tokenizer, "hello"), ElementsAre(267));
  EXPECT_THAT(encode(tokenizer, "hell"), ElementsAre(266));
  EXPECT_THAT(encode(tokenizer, "hel"), ElementsAre(265, 262));
  // After "hell": "hello" -5 before " hell" -6.
  EXPECT_THAT(encode(tokenizer, " hello"), ElementsAre(259, 267));
  EXPECT_THAT(encode(tokenizer, " hell"), ElementsAre(269));
  // "he" -2 before " h" -4.
  EXPECT_THAT(encode(tokenizer, " he"), ElementsAre(259, 265));
  EXPECT_THAT(encode(tokenizer, " ho"), ElementsAre(268, 263));
}

TEST(SpmTokenizer, MergesTheLeftmostOfEqualScores) {
  const Tokenizer tokenizer = make(test::tiny_spm_vocabulary());
  EXPECT_THAT(encode(tokenizer, "lll"), ElementsAre(264, 262));
  EXPECT_THAT(encode(tokenizer, "lllll"), ElementsAre(264, 264, 262));
}

TEST(SpmTokenizer, MergesCharactersThatAreNoPieces) {
  Vocabulary vocabulary = test::tiny_spm_vocabulary();
  add_scored(vocabulary, "\xE4\xBD\xA0\xE5\xA5\xBD", -7);
  const Tokenizer tokenizer = make(vocabulary);
  EXPECT_THAT(encode(tokenizer, "\xE4\xBD\xA0\xE5\xA5\xBD"), ElementsAre(271));
  EXPECT_THAT(encode(tokenizer, "\xE4\xBD\xA0"),
              ElementsAre(spm_byte(0xE4), spm_byte(0xBD), spm_byte(0xA0)));
}

TEST(SpmTokenizer, FallsBackToBytesAndJoinsThemAgain) {
  const Tokenizer tokenizer = make(test::tiny_spm_vocabulary());
  const std::string text = "x\xC3\xA9\xF0\x9F\x98\x80h\xFF";
  const std::vector<TokenId> ids = encode(tokenizer, text);
  EXPECT_THAT(ids,
              ElementsAre(spm_byte('x'), spm_byte(0xC3), spm_byte(0xA9), spm_byte(0xF0),
                          spm_byte(0x9F), spm_byte(0x98), spm_byte(0x80), 260, spm_byte(0xFF)));
  EXPECT_EQ(tokenizer.decode(ids).value(), text);
}

TEST(SpmTokenizer, StreamsWholeCharactersFromByteTokens) {
  const Tokenizer tokenizer = make(test::tiny_spm_vocabulary());
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(269).value(), " hell");
  EXPECT_EQ(decoder.push(spm_byte(0xF0)).value(), "");
  EXPECT_EQ(decoder.push(spm_byte(0x9F)).value(), "");
  EXPECT_EQ(decoder.push(spm_byte(0x98)).value(), "");
  EXPECT_EQ(decoder.push(spm_byte(0x80)).value(), "\xF0\x9F\x98\x80");
  EXPECT_EQ(decoder.push(2).value(), "");
  EXPECT_EQ(decoder.push(spm_byte(0xC3)).value(), "");
  // Another token before the character is complete: it never will be.
  EXPECT_EQ(decoder.push(265).value(), "\xEF\xBF\xBDhe");
  EXPECT_EQ(decoder.push(spm_byte(0xE4)).value(), "");
  EXPECT_EQ(decoder.flush(), "\xEF\xBF\xBD");
}

TEST(SpmTokenizer, TakesTheMarkOfTheSpaceForASpace) {
  const Tokenizer tokenizer = make(test::tiny_spm_vocabulary());
  EXPECT_THAT(encode(tokenizer, kMark + "hell"), ElementsAre(269));
  EXPECT_EQ(tokenizer.decode(encode(tokenizer, kMark + "hell" + kMark)).value(), " hell ");
  EXPECT_EQ(tokenizer.piece(269).value(), kMark + "hell");
  EXPECT_EQ(tokenizer.token_bytes(269).value(), " hell");
  EXPECT_EQ(tokenizer.find(kMark + "hell"), 269);
  EXPECT_EQ(tokenizer.find(" hell"), std::nullopt);
}

TEST(SpmTokenizer, GivesASpaceBackThatHasNoPiece) {
  Vocabulary vocabulary = test::tiny_spm_vocabulary();
  vocabulary.token_types[259] = static_cast<int32_t>(TokenType::control);
  const Tokenizer tokenizer = make(vocabulary);
  EXPECT_THAT(encode(tokenizer, "o o"), ElementsAre(263, spm_byte(' '), 263));
}

TEST(SpmTokenizer, PutsASpaceBeforeTextAndAfterWholeTokensIfTheFileSaysSoOrNothing) {
  Vocabulary vocabulary = test::tiny_spm_vocabulary();
  EXPECT_THAT(encode(make(vocabulary), "hell<tag>hell"), ElementsAre(266, 270, 266));
  for (const std::optional<bool> add : {std::optional<bool>(true), std::optional<bool>()}) {
    vocabulary.add_space_prefix = add;
    const Tokenizer tokenizer = make(vocabulary);
    EXPECT_TRUE(tokenizer.adds_space_prefix());
    EXPECT_THAT(encode(tokenizer, "hell<tag>hell"), ElementsAre(269, 270, 269));
    EXPECT_THAT(encode(tokenizer, "<tag><tag>"), ElementsAre(270, 270));
    EXPECT_THAT(encode(tokenizer, ""), IsEmpty());
    EXPECT_THAT(encode(tokenizer, "<s>hell", {.parse_special = true}), ElementsAre(1, 1, 269));
    EXPECT_THAT(encode(tokenizer, " hell"), ElementsAre(259, 269));
    EXPECT_EQ(tokenizer.decode(encode(tokenizer, "hell")).value(), " hell");
  }
}

TEST(SpmTokenizer, AddsAStartUnlessTheFileSaysNoAndAnEndIfItSaysSo) {
  Vocabulary vocabulary = test::tiny_spm_vocabulary();
  const EncodeOptions special{.add_special = true};
  EXPECT_THAT(encode(make(vocabulary), "he", special), ElementsAre(1, 265));
  vocabulary.add_bos.reset();
  EXPECT_THAT(encode(make(vocabulary), "he", special), ElementsAre(1, 265));
  EXPECT_THAT(encode(make(vocabulary), "", special), ElementsAre(1));
  EXPECT_THAT(encode(make(vocabulary), "he", kPlain), ElementsAre(265));
  vocabulary.add_eos = true;
  EXPECT_THAT(encode(make(vocabulary), "he", special), ElementsAre(1, 265, 2));
  vocabulary.add_bos = false;
  EXPECT_THAT(encode(make(vocabulary), "he", special), ElementsAre(265, 2));
}

TEST(SpmTokenizer, NeverMakesControlOrByteTokensFromTextThatSpellsThem) {
  Vocabulary vocabulary = test::tiny_spm_vocabulary();
  // Merges that would end in <s> (1), <unk> (0) and the byte "A".
  for (const char* piece : {"<", "s", ">", "<s", "s>", "<unk", "<unk>x", "<0x41"}) {
    add_scored(vocabulary, piece, -1);
  }
  const Tokenizer tokenizer = make(vocabulary);
  for (const char* text : {"<s>", "<unk>", "<0x41>", "h<s><unk><0x41></s>"}) {
    const std::vector<TokenId> ids = encode(tokenizer, text);
    EXPECT_EQ(tokenizer.decode(ids).value(), text);
    for (const TokenId id : ids) {
      const TokenType type = tokenizer.token_type(id).value();
      EXPECT_NE(type, TokenType::control) << text;
      EXPECT_NE(type, TokenType::unknown) << text;
      EXPECT_FALSE(type == TokenType::byte && id == spm_byte('A')) << text;
    }
  }
  EXPECT_THAT(encode(tokenizer, "<s>"), ElementsAre(*tokenizer.find("<s"), *tokenizer.find(">")));
  const EncodeOptions parse{.add_special = false, .parse_special = true};
  EXPECT_THAT(encode(tokenizer, "<s>he</s>", parse), ElementsAre(1, 265, 2));
  EXPECT_THAT(encode(tokenizer, "<0x41>", parse), testing::Not(ElementsAre(spm_byte('A'))));
}

TEST(SpmTokenizer, FindsControlTokensOnlyInTrustedSpans) {
  const Tokenizer tokenizer = make(test::tiny_spm_vocabulary());
  const std::vector<TextSpan> spans = {{"<s>he", true}, {"ll</s>", false}, {"</s>", true}};
  EXPECT_THAT(tokenizer.encode_spans(spans, kPlain).value(),
              ElementsAre(1, 266, spm_byte('<'), spm_byte('/'), spm_byte('s'), spm_byte('>'), 2));
}

TEST(SpmTokenizer, NeverGivesUnusedPiecesButMergesThroughThem) {
  Vocabulary vocabulary = test::tiny_spm_vocabulary();
  vocabulary.token_types[266] = static_cast<int32_t>(TokenType::unused);  // "hell"
  const Tokenizer tokenizer = make(vocabulary);
  EXPECT_THAT(encode(tokenizer, "hello"), ElementsAre(267));
  EXPECT_THAT(encode(tokenizer, "hell"), ElementsAre(265, 264));
  EXPECT_EQ(tokenizer.token_bytes(266).value(), "hell");
}

TEST(SpmTokenizer, MatchesUserDefinedTokensAsSpelled) {
  Vocabulary vocabulary = test::tiny_spm_vocabulary();
  add_scored(vocabulary, "  ", -1000, TokenType::user_defined);               // 271
  add_scored(vocabulary, "o" + kMark + "o", -1000, TokenType::user_defined);  // 272
  add_scored(vocabulary, "ho", 0, TokenType::user_defined);                   // 273
  const Tokenizer tokenizer = make(vocabulary);
  EXPECT_THAT(encode(tokenizer, "o   o"), ElementsAre(263, 271, 259, 263));
  EXPECT_THAT(encode(tokenizer, "o o"), ElementsAre(263, 259, 263));
  EXPECT_THAT(encode(tokenizer, "o" + kMark + "o"), ElementsAre(272));
  EXPECT_EQ(tokenizer.token_bytes(272).value(), "o" + kMark + "o");
  EXPECT_THAT(encode(tokenizer, "hho"), ElementsAre(260, 273));
}

TEST(SpmTokenizer, NamesAByteThatTheVocabularyLacksWhereItStandsInTheText) {
  Vocabulary vocabulary = test::tiny_spm_vocabulary();
  const auto id = static_cast<size_t>(spm_byte(0x07));
  vocabulary.token_types[id] = static_cast<int32_t>(TokenType::unused);
  for (const bool prefix : {false, true}) {
    vocabulary.add_space_prefix = prefix;
    const Tokenizer tokenizer = make(vocabulary);
    const std::string text = "h<tag>" + kMark + "o\x07";
    const Result<std::vector<TokenId>> ids = tokenizer.encode(text);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(ids.status().message(), HasSubstr("0x07 at offset 10"));
    EXPECT_TRUE(tokenizer.encode(text, {.missing_byte = MissingByte::drop}).ok());
  }
}

TEST(SpmTokenizer, RefusesVocabulariesThatLackOrContradictSomething) {
  const auto expect_corrupt = [](auto change, const char* key, const char* more = "") {
    Vocabulary vocabulary = test::tiny_spm_vocabulary();
    change(vocabulary);
    const Result<Tokenizer> tokenizer = Tokenizer::create(std::move(vocabulary));
    ASSERT_FALSE(tokenizer.ok()) << key;
    EXPECT_EQ(tokenizer.status().code(), StatusCode::corrupt) << key;
    EXPECT_THAT(tokenizer.status().message(), HasSubstr(std::string("tokenizer.ggml.") + key));
    EXPECT_THAT(tokenizer.status().message(), HasSubstr(more));
  };
  expect_corrupt([](Vocabulary& v) { v.scores.clear(); }, "scores is missing", "convert");
  expect_corrupt([](Vocabulary& v) { v.scores.pop_back(); }, "scores", "270 entries for 271");
  expect_corrupt([](Vocabulary& v) { v.scores[5] = std::nanf(""); }, "scores[5]", "not finite");
  expect_corrupt([](Vocabulary& v) { v.scores[6] = std::numeric_limits<float>::infinity(); },
                 "scores[6]", "not finite");
  expect_corrupt([](Vocabulary& v) { v.token_types.clear(); }, "token_type is missing", "convert");
  expect_corrupt([](Vocabulary& v) { v.token_types.push_back(1); }, "token_type", "272 entries");
  expect_corrupt([](Vocabulary& v) { v.token_types[260] = 6; }, "tokens[260]", "<0x41>");
  expect_corrupt([](Vocabulary& v) { v.pieces[260] = v.pieces[259]; }, "tokens[260]", "259");
  expect_corrupt([](Vocabulary& v) { v.pieces[260] = std::string(1025, 'h'); }, "tokens[260]",
                 "1024");
  expect_corrupt(
      [](Vocabulary& v) {
        v.add_bos.reset();
        v.bos.reset();
      },
      "add_bos_token is missing", "bos_token_id is missing");
}

TEST(SpmTokenizer, GivesBackAnyBytes) {
  const Tokenizer tokenizer = make(test::tiny_spm_vocabulary());
  std::mt19937 random(1);
  const std::string alphabet = "hello <s>\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80";
  for (int round = 0; round < 4000; ++round) {
    std::string text(random() % 40, '\0');
    for (char& c : text) {
      c = round % 2 == 0 ? static_cast<char>(random()) : alphabet[random() % alphabet.size()];
    }
    ASSERT_EQ(text.find(kMark), std::string::npos);
    EXPECT_EQ(tokenizer.decode(encode(tokenizer, text)).value(), text);
  }
}

// A quadratic merge loop or matcher would take minutes here.
TEST(SpmTokenizer, TakesLittleTimeForLongTextsOfAnyShape) {
  constexpr size_t kLong = 1 << 20;
  Vocabulary vocabulary = test::tiny_spm_vocabulary();
  const auto repeated = [](const std::string& unit, size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += unit;
    return text;
  };
  // Runs of letters and of spaces in powers of two, and one that grows letter by letter.
  for (size_t length = 2; length <= 256; length *= 2) {
    add_scored(vocabulary, repeated("a", length), -static_cast<float>(length));
    add_scored(vocabulary, repeated(kMark, 3 * length), -static_cast<float>(length));
  }
  for (size_t length = 2; length <= 300; ++length) {
    add_scored(vocabulary, repeated("b", length), static_cast<float>(length));
    if (length <= 30) add_scored(vocabulary, std::string(length, ' '), 0, TokenType::user_defined);
  }
  const Tokenizer tokenizer = make(vocabulary);
  for (const char* unit : {"a", "b", " ", "\n", "<", "h", "\xFF", "\x80", "l", "hello", "ab ",
                           "<s><tag>x</s>", "\xC3\xA9", "\xE2\x96\x81"}) {
    const std::string text = repeated(unit, kLong);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<TokenId> ids =
        encode(tokenizer, text, {.add_special = false, .parse_special = true});
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    EXPECT_LT(time.count(), 20.0) << unit;
    if (unit == kMark) continue;
    EXPECT_TRUE(tokenizer.decode(ids).value() == text) << unit;
  }
}

}  // namespace
}  // namespace kvik
