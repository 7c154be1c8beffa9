#include "kvik/model/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvik {
namespace {

using testing::ElementsAre;

std::vector<std::string> pieces(PreTokenizer kind, std::string_view text) {
  std::vector<std::string> result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = piece_end(kind, text, begin);
    result.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return result;
}

TEST(PreTokenizer, Gpt2CutsWordsNumbersPunctuationAndSpaces) {
  EXPECT_THAT(
      pieces(PreTokenizer::gpt2, "It's  10:45 a.m.\n\n x "),
      ElementsAre("It", "'s", " ", " 10", ":", "45", " a", ".", "m", ".", "\n\n", " x", " "));
}

TEST(PreTokenizer, Gpt2KnowsContractionsInLowerCaseOnly) {
  EXPECT_THAT(pieces(PreTokenizer::gpt2, "I'LL we'll 'really"),
              ElementsAre("I", "'", "LL", " we", "'ll", " '", "really"));
}

TEST(PreTokenizer, SmollmCutsEachDigitAndThenSpacesBeforeIt) {
  EXPECT_THAT(pieces(PreTokenizer::smollm, "a  12 b"), ElementsAre("a", "  ", "1", "2", " b"));
  EXPECT_THAT(pieces(PreTokenizer::gpt2, "a  12 b"), ElementsAre("a", " ", " 12", " b"));
}

TEST(PreTokenizer, LlamaCutsNumbersInThreesAndKeepsLineBreaksTogether) {
  EXPECT_THAT(pieces(PreTokenizer::llama_bpe, "12345 (x) !\n\n  y\n  \n  z"),
              ElementsAre("123", "45", " (", "x", ")", " !\n\n", " ", " y", "\n  \n", " ", " z"));
}

TEST(PreTokenizer, LlamaTakesOneCharacterBeforeLettersAndAnyCaseContractions) {
  EXPECT_THAT(pieces(PreTokenizer::llama_bpe, "I'LL\tgo.now"),
              ElementsAre("I", "'LL", "\tgo", ".now"));
}

TEST(PreTokenizer, QwenCutsAsLlamaButEachDigit) {
  EXPECT_THAT(pieces(PreTokenizer::qwen2, "I'LL 345 (x)!\n\n  y"),
              ElementsAre("I", "'LL", " ", "3", "4", "5", " (", "x", ")!\n\n", " ", " y"));
}

TEST(PreTokenizer, TreatsIllFormedBytesAsOneMoreSymbol) {
  EXPECT_THAT(pieces(PreTokenizer::gpt2, "a\xFF\xC3z"), ElementsAre("a", "\xFF\xC3", "z"));
}

TEST(PreTokenizer, KnowsTheNamesOfFilesAndListsThemOtherwise) {
  EXPECT_EQ(pre_tokenizer_from_name("smollm").value(), PreTokenizer::smollm);
  EXPECT_EQ(pre_tokenizer_from_name("gpt-2").value(), PreTokenizer::gpt2);
  EXPECT_EQ(pre_tokenizer_from_name("llama-bpe").value(), PreTokenizer::llama_bpe);
  EXPECT_EQ(pre_tokenizer_from_name("qwen2").value(), PreTokenizer::qwen2);
  const Status status = pre_tokenizer_from_name("").status();
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_THAT(status.message(), testing::HasSubstr("gpt-2, llama-bpe, qwen2, smollm"));
}

}  // namespace
}  // namespace kvik
