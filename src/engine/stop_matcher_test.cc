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

}  // namespace
}  // namespace kvik::internal
