#include "model/spm_merger.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace kvik::internal {
namespace {

using Merging = SpmPieces::Merging;

struct Piece {
  std::string bytes;
  float score = 0;
};

// The definition, word for word: texts of ASCII letters.
std::vector<std::string> merge_slowly(const std::vector<Piece>& pieces, const std::string& text) {
  std::map<std::string, float> scores;
  for (const Piece& piece : pieces) scores.emplace(piece.bytes, piece.score);
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  while (true) {
    size_t best = parts.size();
    float best_score = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = scores.find(parts[i] + parts[i + 1]);
      if (it == scores.end() || (best < parts.size() && it->second <= best_score)) continue;
      best = i;
      best_score = it->second;
    }
    if (best == parts.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

SpmPieces make(const std::vector<Piece>& pieces) {
  SpmPieces made(pieces.size(), 0);
  for (const Piece& piece : pieces) made.add(piece.bytes, piece.score, Merging::yes);
  return made;
}

std::vector<std::string> parts_of(const SpmPieces& pieces, const std::string& text) {
  std::vector<std::string> parts;
  SpmMerger merger(pieces);
  for (const SpmMerger::Part& part : merger.merge(text)) {
    parts.push_back(text.substr(part.begin, part.length));
    if (part.id) {
      EXPECT_EQ(pieces.bytes(*part.id), parts.back());
    } else {
      EXPECT_FALSE(pieces.find(parts.back()));
    }
  }
  return parts;
}

TEST(SpmMerger, FollowsTheDefinitionOnRandomPiecesWithEqualScores) {
  std::mt19937 random(11);
  const auto random_text = [&random](size_t length) {
    std::string text(length, '\0');
    for (char& c : text) c = "abc"[random() % 3];
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::map<std::string, float> unique;
    for (auto count = 1 + random() % 30; count > 0; --count) {
      unique.emplace(random_text(1 + random() % 6), -static_cast<float>(random() % 6));
    }
    std::vector<Piece> pieces;
    for (const auto& [bytes, score] : unique) pieces.push_back({bytes, score});
    const std::string text = random_text(random() % 60);
    EXPECT_EQ(parts_of(make(pieces), text), merge_slowly(pieces, text)) << text;
  }
}

// Where no piece has two neighbours side by side, each part of a text merges on its own.
TEST(SpmMerger, MergesAcrossNoPairThatNoPieceHas) {
  const SpmPieces pieces = make({{"a", 0}, {"ab", 0}, {"bc", 1}});
  EXPECT_TRUE(pieces.side_by_side('a', 'b'));
  EXPECT_TRUE(pieces.side_by_side('b', 'c'));
  EXPECT_FALSE(pieces.side_by_side('b', 'a'));
  EXPECT_FALSE(pieces.side_by_side('c', 'a'));
  EXPECT_EQ(parts_of(pieces, "abcab"), (std::vector<std::string>{"a", "bc", "ab"}));
}

TEST(SpmMerger, StartsFromWholeCharactersAndSingleBytesOfWhatIsNone) {
  // "\xC3\xA9" is one character; "\xA9x" is a piece that no character starts with.
  const SpmPieces pieces = make({{"\xC3\xA9", 0}, {"\xA9x", 0}, {"\xC3", 0}});
  EXPECT_EQ(parts_of(pieces, "\xC3\xA9x"), (std::vector<std::string>{"\xC3\xA9", "x"}));
  EXPECT_EQ(parts_of(pieces, "\xC3\xC3"), (std::vector<std::string>{"\xC3", "\xC3"}));
  EXPECT_EQ(parts_of(pieces, "\xF0\x9F\x98"), (std::vector<std::string>{"\xF0", "\x9F", "\x98"}));
}

TEST(SpmMerger, TakesAPassingPieceApartAgain) {
  SpmPieces pieces(6, 0);
  pieces.add("a", 0, Merging::yes);
  pieces.add("b", 0, Merging::passing);
  pieces.add("ab", -1, Merging::passing);
  pieces.add("abab", -2, Merging::passing);
  pieces.add("ababc", -3, Merging::yes);
  pieces.add("c", 0, Merging::never);
  SpmMerger merger(pieces);
  const auto ids = [&merger](std::string_view text) {
    std::vector<std::optional<TokenId>> found;
    for (const SpmMerger::Part& part : merger.merge(text)) found.push_back(part.id);
    return found;
  };
  using Ids = std::vector<std::optional<TokenId>>;
  EXPECT_EQ(ids("ababc"), (Ids{4}));
  EXPECT_EQ(ids("abab"), (Ids{0, std::nullopt, 0, std::nullopt}));
  EXPECT_EQ(ids("c"), (Ids{std::nullopt}));
  EXPECT_EQ(ids(""), (Ids{}));
}

}  // namespace
}  // namespace kvik::internal
