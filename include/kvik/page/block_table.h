// One sequence's map from block to page, and who may write where.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/page/page_pool.h"

namespace kvik {

// Blocks [begin_block, end_block) in order; blocks below begin_block were given back by a window.
// Owns one reference to each page. A written row never changes: a handle writes in place only into
// a page that no other handle holds, or that it took from the pool itself and only beyond what
// others can see of it. Move-only; fork() shares.
class KVIK_API BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&&) = default;
  BlockTable& operator=(BlockTable&&) = default;

  int begin_block() const { return begin_block_; }
  int end_block() const { return begin_block_ + static_cast<int>(pages_.size()); }
  // Requires: begin_block() <= block < end_block(), for all below that take a block.
  int page(int block) const { return page_ids_[static_cast<size_t>(block - begin_block_)]; }
  // Pages of blocks [begin_block(), end_block()).
  std::span<const int32_t> page_ids() const { return page_ids_; }

  // Whether writing a row at `position` (a token of `block`) needs a copy of the page first.
  bool must_copy(int block, int64_t position) const;

  // Adds a page fresh from the pool.
  void append(PageRef page);
  // Puts a copy, fresh from the pool, in the place of the last block's page.
  // Requires: block == end_block() - 1.
  void replace_last(int block, PageRef page);
  // Drops the blocks from `block` on. Requires: begin_block() <= block.
  void drop_from(int block);
  // Drops the blocks before `block`. Requires: block <= end_block().
  void drop_before(int block);
  // As drop_before, and for good: floor_block() is at least `block`.
  void forget_before(int block);
  // Blocks before it were forgotten and belong no more to what the table's handle can go back to.
  int floor_block() const { return floor_block_; }
  // Takes out the blocks [block, block + count), of block_size tokens each. Later blocks keep their
  // pages and move down by `count`. Blocks that a window gave back count as if they were there.
  // Requires: block and count >= 0, block + count <= end_block().
  void erase(int block, int count, int block_size);
  // Empties the table; the next block appended is block 0.
  void clear();

  // A table of the same pages for a handle that sees num_tokens tokens.
  BlockTable fork(int64_t num_tokens);

 private:
  const PageRef& ref(int block) const { return pages_[static_cast<size_t>(block - begin_block_)]; }

  std::vector<PageRef> pages_;
  std::vector<int32_t> page_ids_;  // of pages_, as kernels want them
  int begin_block_ = 0;
  int floor_block_ = 0;
  int first_owned_ = 0;         // blocks from here on came from the pool to this table
  int64_t visible_tokens_ = 0;  // other handles see at most this many tokens of this table's pages
};

}  // namespace kvik
