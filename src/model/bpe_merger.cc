#include "model/bpe_merger.h"

#include <algorithm>
#include <bit>

namespace kvik::internal {
namespace {

constexpr uint64_t kNoPair = ~uint64_t{0};  // no pair of symbols >= 0 looks like this
constexpr Symbol kDead = -1;                // merged into its left neighbour
constexpr uint32_t kNone = ~uint32_t{0};

uint64_t pack(Symbol left, Symbol right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t num_merges)
    : slots_(std::bit_ceil(2 * num_merges + 2), Slot{kNoPair, {}}),
      shift_(64 - static_cast<unsigned>(std::countr_zero(slots_.size()))) {}

size_t MergeTable::slot_of(uint64_t pair) const {
  // The golden ratio spreads the low bits of both halves over the high bits of the product.
  size_t slot = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15U >> shift_;
  while (slots_[slot].pair != kNoPair && slots_[slot].pair != pair) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

void MergeTable::insert(Symbol left, Symbol right, Merge merge) {
  const uint64_t pair = pack(left, right);
  Slot& slot = slots_[slot_of(pair)];
  if (slot.pair == kNoPair) slot = {pair, merge};
}

const MergeTable::Merge* MergeTable::find(Symbol left, Symbol right) const {
  const Slot& slot = slots_[slot_of(pack(left, right))];
  return slot.pair == kNoPair ? nullptr : &slot.merge;
}

void BpeMerger::merge(std::vector<Symbol>& symbols) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= short_limit_) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
}

void BpeMerger::merge_short(std::vector<Symbol>& symbols) {
  pair_merges_.resize(symbols.size() - 1);
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    pair_merges_[i] = table_->find(symbols[i], symbols[i + 1]);
  }
  while (true) {
    size_t best = symbols.size();
    uint32_t best_rank = kNone;
    for (size_t i = 0; i < pair_merges_.size(); ++i) {
      if (pair_merges_[i] != nullptr && pair_merges_[i]->rank < best_rank) {
        best = i;
        best_rank = pair_merges_[i]->rank;
      }
    }
    if (best == symbols.size()) return;
    symbols[best] = pair_merges_[best]->result;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    pair_merges_.erase(pair_merges_.begin() + static_cast<ptrdiff_t>(best));
    if (best > 0) pair_merges_[best - 1] = table_->find(symbols[best - 1], symbols[best]);
    if (best < pair_merges_.size()) {
      pair_merges_[best] = table_->find(symbols[best], symbols[best + 1]);
    }
  }
}

void BpeMerger::offer(const std::vector<Symbol>& symbols, uint32_t left) {
  const uint32_t right = next_[left];
  if (right == kNone) return;
  const MergeTable::Merge* merge = table_->find(symbols[left], symbols[right]);
  if (merge == nullptr) return;
  heap_.push_back({merge->rank, left, symbols[left], symbols[right]});
  std::push_heap(heap_.begin(), heap_.end(), worse);
}

void BpeMerger::merge_long(std::vector<Symbol>& symbols) {
  const auto count = static_cast<uint32_t>(symbols.size());
  next_.resize(count);
  previous_.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    previous_[i] = i == 0 ? kNone : i - 1;
    next_[i] = i + 1 == count ? kNone : i + 1;
  }
  heap_.clear();
  for (uint32_t i = 0; i < count; ++i) offer(symbols, i);

  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), worse);
    const Candidate top = heap_.back();
    heap_.pop_back();
    const uint32_t right = next_[top.left];
    // A candidate outlives its pair when either side has merged with something else since. The
    // symbols tell: a side that changed is another, longer symbol, or dead.
    if (symbols[top.left] != top.left_symbol || right == kNone ||
        symbols[right] != top.right_symbol) {
      continue;
    }
    symbols[top.left] = table_->find(top.left_symbol, top.right_symbol)->result;
    symbols[right] = kDead;
    next_[top.left] = next_[right];
    if (next_[right] != kNone) previous_[next_[right]] = top.left;
    if (previous_[top.left] != kNone) offer(symbols, previous_[top.left]);
    offer(symbols, top.left);
  }
  std::erase(symbols, kDead);
}

}  // namespace kvik::internal
