// Byte-pair merges over symbols: the best-ranked pair first, the leftmost of equals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvik::internal {

using Symbol = int32_t;

// Maps a pair of symbols to its merge. Open addressing, at most half full.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    Symbol result;
  };

  // Requires: num_merges calls of insert() at most.
  explicit MergeTable(size_t num_merges);

  // The first insert of a pair wins. Requires: symbols >= 0.
  void insert(Symbol left, Symbol right, Merge merge);
  // nullptr if the pair has no merge. Requires: symbols >= 0.
  const Merge* find(Symbol left, Symbol right) const;

 private:
  struct Slot {
    uint64_t pair;
    Merge merge;
  };
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;
  unsigned shift_;
};

// Merges one piece after another; keeps its working memory between them. One thread at a time.
class BpeMerger {
 public:
  // Up to `short_limit` symbols each merge scans all of them; above that a heap keeps the time at
  // O(n log n). Both give the same result.
  explicit BpeMerger(const MergeTable& table, size_t short_limit = 48)
      : table_(&table), short_limit_(short_limit) {}

  // Merges `symbols` in place until no neighbours merge.
  // Requires: fewer than 2^31 symbols, all >= 0.
  void merge(std::vector<Symbol>& symbols);

 private:
  struct Candidate {
    uint32_t rank;
    uint32_t left;  // index of the left symbol
    Symbol left_symbol, right_symbol;
  };
  static bool worse(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }

  void merge_short(std::vector<Symbol>& symbols);
  void merge_long(std::vector<Symbol>& symbols);
  void offer(const std::vector<Symbol>& symbols, uint32_t left);

  const MergeTable* table_;
  size_t short_limit_;
  std::vector<const MergeTable::Merge*> pair_merges_;
  std::vector<Candidate> heap_;
  std::vector<uint32_t> next_, previous_;
};

}  // namespace kvik::internal
