#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

namespace kvik::internal {
namespace {

// All that comes out when `text` goes in piece by piece.
std::string pass(StopMatcher& matcher, const std::string& text, size_t piece) {
  std::string out;
  for (size_t i = 0; i < text.size(); i += piece) out += matcher.push(text.substr(i, piece));
  return out + matcher.flush();
}

TEST(StopMatcher, FindsAStopStringAcrossAnyPieces) {
  for (size_t piece = 1; piece <= 12; ++piece) {
    StopMatcher matcher({"\n\nUser:", "END"});
    EXPECT_EQ(pass(matcher, "one\n\nUse\n\nUser: two END", piece), "one\n\nUse");
    EXPECT_TRUE(matcher.is_stopped());
  }
}

TEST(StopMatcher, GivesBackWhatOnlyLookedLikeAStopString) {
  for (size_t piece = 1; piece <= 12; ++piece) {
    StopMatcher matcher({"aab", "ENDE"});
    EXPECT_EQ(pass(matcher, "aaaa EN END", piece), "aaaa EN END");
    EXPECT_FALSE(matcher.is_stopped());
  }
}

TEST(StopMatcher, HoldsBackNoMoreThanCouldStillMatch) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("nonst"), "non");
  EXPECT_EQ(matcher.push("a"), "sta");
  EXPECT_EQ(matcher.push("plain"), "plain");
}

TEST(StopMatcher, TheFirstStopStringInTheTextWins) {
  StopMatcher matcher({"second", "first"});
  EXPECT_EQ(matcher.push("a first b second"), "a ");
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, WithoutStopStringsTextPassesAtOnce) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("a"), "a");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, AHiddenTokenIsMatchedByItsSpelling) {
  StopMatcher matcher({"<|im_end|>"});
  EXPECT_EQ(matcher.push("text"), "text");
  EXPECT_EQ(matcher.push_hidden("<|im_start|>"), "");
  EXPECT_EQ(matcher.push("more<"), "more");
  EXPECT_EQ(matcher.push("x"), "<x");
  EXPECT_EQ(matcher.push_hidden("<|im_end|>"), "");
  EXPECT_TRUE(matcher.is_stopped());
  EXPECT_EQ(matcher.push("behind") + matcher.flush(), "");
}

TEST(StopMatcher, TheSpellingInShownTextStopsToo) {
  for (size_t piece = 1; piece <= 12; ++piece) {
    StopMatcher matcher({"<|im_end|>"});
    EXPECT_EQ(pass(matcher, "text<|im_end|>more", piece), "text");
  }
}

TEST(StopMatcher, AHiddenTokenIsMatchedWholeAlone) {
  for (const char* stop : {"|>", "<|im", "<|im_end|", "im_end", "<|im_end|>x"}) {
    StopMatcher matcher({stop});
    std::string out = matcher.push("a");
    out += matcher.push_hidden("<|im_end|>");
    out += matcher.push("y|");
    EXPECT_EQ(out + matcher.flush(), "ay|") << stop;
    EXPECT_FALSE(matcher.is_stopped());
  }
}

TEST(StopMatcher, StopStringsMixShownTextAndHiddenTokens) {
  StopMatcher matcher({"end<|a|>\nnext<|b|>"});
  EXPECT_EQ(matcher.push("the e"), "the ");
  EXPECT_EQ(matcher.push("nd"), "");
  EXPECT_EQ(matcher.push_hidden("<|a|>"), "");
  EXPECT_EQ(matcher.push("\nne"), "");
  EXPECT_EQ(matcher.push("xt"), "");
  EXPECT_EQ(matcher.push_hidden("<|c|>"), "") << "a token that is not shown parts no text";
  EXPECT_EQ(matcher.push_hidden("<|b|>"), "");
  EXPECT_TRUE(matcher.is_stopped());
}

TEST(StopMatcher, ShownTextIsMatchedAcrossHiddenTokens) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("a st"), "a ");
  EXPECT_EQ(matcher.push_hidden("<|x|>"), "");
  EXPECT_EQ(matcher.push("op!"), "");
  EXPECT_TRUE(matcher.is_stopped());
}

TEST(StopMatcher, HiddenTokensAreNeverGivenBack) {
  StopMatcher matcher({"st<|x|>op"});
  EXPECT_EQ(matcher.push("a st"), "a ");
  EXPECT_EQ(matcher.push_hidden("<|x|>"), "");
  EXPECT_EQ(matcher.push("ay"), "stay");
  EXPECT_EQ(matcher.push_hidden("<|y|>"), "");
  EXPECT_EQ(matcher.push("st"), "");
  EXPECT_EQ(matcher.push_hidden("<|x|>"), "");
  EXPECT_EQ(matcher.flush(), "st");
}

}  // namespace
}  // namespace kvik::internal
