#include "model/bpe_merger.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace kvik::internal {
namespace {

// The definition, word for word.
std::vector<Symbol> merge_slowly(
    const std::map<std::pair<Symbol, Symbol>, MergeTable::Merge>& table,
    std::vector<Symbol> symbols) {
  while (true) {
    size_t best = symbols.size();
    uint32_t best_rank = ~uint32_t{0};
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = table.find({symbols[i], symbols[i + 1]});
      if (it != table.end() && it->second.rank < best_rank) {
        best = i;
        best_rank = it->second.rank;
      }
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = table.at({symbols[best], symbols[best + 1]}).result;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(BpeMerger, ScanAndHeapBothFollowTheDefinition) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    // Symbols 0..3 are letters; each merge makes a new symbol, as strings would.
    const int num_merges = 1 + static_cast<int>(random() % 30);
    MergeTable table(static_cast<size_t>(num_merges));
    std::map<std::pair<Symbol, Symbol>, MergeTable::Merge> slow;
    std::vector<uint32_t> ranks(static_cast<size_t>(num_merges));
    for (uint32_t i = 0; i < ranks.size(); ++i) ranks[i] = i;
    std::shuffle(ranks.begin(), ranks.end(), random);
    for (int m = 0; m < num_merges; ++m) {
      const auto left = static_cast<Symbol>(random() % static_cast<unsigned>(4 + m));
      const auto right = static_cast<Symbol>(random() % static_cast<unsigned>(4 + m));
      const MergeTable::Merge merge{ranks[static_cast<size_t>(m)], 4 + m};
      table.insert(left, right, merge);
      slow.emplace(std::pair(left, right), merge);
    }
    std::vector<Symbol> symbols(random() % 120);
    for (Symbol& symbol : symbols) symbol = static_cast<Symbol>(random() % 4);
    const std::vector<Symbol> expected = merge_slowly(slow, symbols);

    std::vector<Symbol> scanned = symbols;
    BpeMerger(table, 1000).merge(scanned);
    EXPECT_EQ(scanned, expected);
    std::vector<Symbol> heaped = symbols;
    BpeMerger(table, 0).merge(heaped);
    EXPECT_EQ(heaped, expected);
  }
}

TEST(MergeTable, KeepsTheFirstMergeOfAPair) {
  MergeTable table(2);
  table.insert(1, 2, {5, 10});
  table.insert(1, 2, {3, 11});
  ASSERT_NE(table.find(1, 2), nullptr);
  EXPECT_EQ(table.find(1, 2)->rank, 5U);
  EXPECT_EQ(table.find(2, 1), nullptr);
}

}  // namespace
}  // namespace kvik::internal
