#include "kvik/model/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "support/tiny_vocabulary.h"

namespace kvik {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

class StreamDecoderTest : public testing::Test {
 protected:
  Tokenizer tokenizer_ = std::move(Tokenizer::create(test::tiny_vocabulary())).value();
  StreamDecoder decoder_{tokenizer_};
};

TEST_F(StreamDecoderTest, GivesACharacterOnceAndWhole) {
  EXPECT_EQ(decoder_.push(0xF0).value(), "");
  EXPECT_EQ(decoder_.push(0x9F).value(), "");
  EXPECT_EQ(decoder_.push(0x98).value(), "");
  EXPECT_EQ(decoder_.push(0xB8).value(), "\xF0\x9F\x98\xB8");
  EXPECT_EQ(decoder_.push(0xC3).value(), "");
  EXPECT_EQ(decoder_.push(0xA9).value(), "\xC3\xA9");
  EXPECT_EQ(decoder_.flush(), "");
}

TEST_F(StreamDecoderTest, GivesOneReplacementForAnIncompleteEnd) {
  EXPECT_EQ(decoder_.push_bytes("a\xF0\x9F\x98"), "a");
  EXPECT_EQ(decoder_.flush(), kReplacement);
  EXPECT_EQ(decoder_.flush(), "");
}

TEST_F(StreamDecoderTest, DoesNotHoldBackWhatCanNeverBecomeACharacter) {
  EXPECT_EQ(decoder_.push(0xFF).value(), kReplacement);
  EXPECT_EQ(decoder_.push(0x80).value(), kReplacement);
  // A lead byte followed by something else: the letter comes at once.
  EXPECT_EQ(decoder_.push_bytes("\xE4"), "");
  EXPECT_EQ(decoder_.push_bytes("x"), std::string(kReplacement) + "x");
  // 0xED 0xA0 starts a surrogate, 0xF4 0x90 lies above U+10FFFF.
  EXPECT_EQ(decoder_.push_bytes("\xED\xA0"), std::string(kReplacement) + kReplacement);
  EXPECT_EQ(decoder_.push_bytes("\xF4\x90"), std::string(kReplacement) + kReplacement);
}

TEST_F(StreamDecoderTest, SkipsControlTokensUnlessAsked) {
  EXPECT_EQ(decoder_.push(257).value(), "");
  EXPECT_EQ(StreamDecoder(tokenizer_, false).push(257).value(), "<|end|>");
  EXPECT_EQ(decoder_.push(258).value(), "<tag>");
}

// Expected values from Python's bytes.decode("utf-8", "replace"), U+FFFD written as '?'.
TEST(ToValidUtf8, ReplacesMaximalSubpartsAsPythonDoes) {
  const auto replaced = [](std::string_view bytes) {
    std::string text = to_valid_utf8(bytes);
    for (size_t at; (at = text.find(kReplacement)) != std::string::npos;) text.replace(at, 3, "?");
    return text;
  };
  EXPECT_EQ(replaced("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"), "a???b?c??d");
  EXPECT_EQ(replaced("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), "????????A");
  EXPECT_EQ(replaced("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), "????????A");
  EXPECT_EQ(replaced("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), "?????A??B");
  EXPECT_EQ(replaced("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "????A");
}

TEST_F(StreamDecoderTest, GivesTheSameTextHoweverTheBytesAreCut) {
  std::mt19937 random(3);
  // Mostly bytes near the edges of UTF-8's ranges.
  const std::string alphabet =
      "ab\xC2\xC3\xE0\xE1\xED\xEF\xF0\xF1\xF4\xF5\x80\x8F\x90\x9F\xA0\xBF\xBF\x80";
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 12, '\0');
    for (char& c : bytes) c = alphabet[random() % alphabet.size()];
    std::string joined;
    for (size_t pos = 0; pos < bytes.size();) {
      const size_t length = 1 + random() % 3;
      const std::string text = decoder_.push_bytes(std::string_view(bytes).substr(pos, length));
      EXPECT_EQ(to_valid_utf8(text), text);
      joined += text;
      pos += length;
    }
    joined += decoder_.flush();
    EXPECT_EQ(joined, to_valid_utf8(bytes));
  }
}

}  // namespace
}  // namespace kvik
