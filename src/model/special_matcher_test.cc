#include "model/special_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvik::internal {
namespace {

using Special = SpecialMatcher::Special;
using Range = SpecialMatcher::Range;
using Fragment = SpecialMatcher::Fragment;

// The definition: one token after the other takes all its occurrences in what is left.
std::vector<Fragment> split_slowly(std::vector<Special> specials, const std::string& text,
                                   const std::vector<Range>& trusted) {
  std::sort(specials.begin(), specials.end(), [](const Special& a, const Special& b) {
    return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.id < b.id;
  });
  std::vector<int> owner(text.size(), -1);  // of each byte: index of its token in `tokens`
  std::vector<Fragment> tokens;
  for (const Special& special : specials) {
    for (size_t begin = 0; begin + special.text.size() <= text.size(); ++begin) {
      const size_t end = begin + special.text.size();
      bool fits = text.compare(begin, special.text.size(), special.text) == 0;
      for (size_t i = begin; i < end; ++i) fits = fits && owner[i] == -1;
      if (special.trusted_only) {
        fits = fits && std::any_of(trusted.begin(), trusted.end(), [&](const Range& range) {
                 return range.begin <= begin && end <= range.end;
               });
      }
      if (!fits) continue;
      for (size_t i = begin; i < end; ++i) owner[i] = static_cast<int>(tokens.size());
      tokens.push_back({begin, end, true, special.id});
    }
  }
  std::vector<Fragment> fragments;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = pos;
    while (end < text.size() && owner[end] == -1) ++end;
    if (end > pos) {
      fragments.push_back({pos, end, false, 0});
    } else {
      fragments.push_back(tokens[static_cast<size_t>(owner[pos])]);
      end = fragments.back().end;
    }
    pos = end;
  }
  return fragments;
}

TEST(SpecialMatcher, FollowsTheDefinitionOnRandomTexts) {
  std::mt19937 random(5);
  const auto random_text = [&random](size_t length) {
    std::string text(length, '\0');
    for (char& c : text) c = "abc"[random() % 3];
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::set<std::string> texts;
    for (auto count = random() % 8; count > 0; --count) texts.insert(random_text(1 + random() % 5));
    std::vector<Special> specials;
    for (const std::string& text : texts) {
      const auto id = static_cast<TokenId>((specials.size() * 5 + 3) % 8);
      specials.push_back({text, id, random() % 2 == 0});
    }
    const std::string text = random_text(random() % 40);
    std::vector<Range> trusted;
    for (size_t begin = random() % 8; begin < text.size();) {
      const size_t end = std::min(text.size(), begin + 1 + random() % 12);
      trusted.push_back({begin, end});
      begin = end + 1 + random() % 8;
    }
    const std::vector<Fragment> expected = split_slowly(specials, text, trusted);
    const std::vector<Fragment> found = SpecialMatcher(specials).split(text, trusted);
    ASSERT_EQ(found.size(), expected.size()) << text;
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].begin, expected[i].begin) << text;
      EXPECT_EQ(found[i].end, expected[i].end) << text;
      EXPECT_EQ(found[i].is_token, expected[i].is_token) << text;
      if (found[i].is_token) {
        EXPECT_EQ(found[i].id, expected[i].id) << text;
      }
    }
  }
}

TEST(SpecialMatcher, GivesNoFragmentsOfAnEmptyTextAndOneOfATextWithoutTokens) {
  EXPECT_TRUE(SpecialMatcher({{"x", 1, false}}).split("", {}).empty());
  const std::vector<Fragment> fragments = SpecialMatcher({}).split("abc", {});
  ASSERT_EQ(fragments.size(), 1U);
  EXPECT_FALSE(fragments[0].is_token);
  EXPECT_EQ(fragments[0].end, 3U);
}

}  // namespace
}  // namespace kvik::internal
