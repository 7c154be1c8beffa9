#include "kvik/page/block_table.h"

#include <algorithm>

#include "kvik/core/check.h"

namespace kvik {

bool BlockTable::must_copy(int block, int64_t position) const {
  if (!ref(block).is_shared()) return false;
  return block < first_owned_ || position < visible_tokens_;
}

void BlockTable::append(PageRef page) {
  page_ids_.push_back(page.page());
  pages_.push_back(std::move(page));
}

void BlockTable::replace_last(int block, PageRef page) {
  KVIK_CHECK(block == end_block() - 1, "only the last block is ever replaced");
  page_ids_.back() = page.page();
  pages_.back() = std::move(page);
  first_owned_ = std::min(first_owned_, block);
}

void BlockTable::drop_from(int block) {
  KVIK_CHECK(block >= begin_block_, "blocks that a window gave back cannot be dropped");
  if (block < end_block()) {
    pages_.resize(static_cast<size_t>(block - begin_block_));
    page_ids_.resize(pages_.size());
  }
  first_owned_ = std::min(first_owned_, end_block());
}

void BlockTable::drop_before(int block) {
  KVIK_CHECK(block <= end_block(), "a window cannot give back blocks that are not there");
  if (block <= begin_block_) return;
  pages_.erase(pages_.begin(), pages_.begin() + (block - begin_block_));
  page_ids_.erase(page_ids_.begin(), page_ids_.begin() + (block - begin_block_));
  begin_block_ = block;
}

void BlockTable::forget_before(int block) {
  drop_before(block);
  floor_block_ = std::max(floor_block_, block);
}

void BlockTable::erase(int block, int count, int block_size) {
  KVIK_CHECK(block >= 0 && count >= 0 && block_size > 0 && count <= end_block() - block,
             "blocks that are not there cannot be taken out");
  // Where something that lay at `at` lies afterwards; what lay in the run is at its begin.
  const auto moved = [](int64_t at, int64_t begin, int64_t size) {
    return at <= begin ? at : std::max(begin, at - size);
  };
  const int first = std::max(begin_block_, block) - begin_block_;
  const int last = std::max(begin_block_, block + count) - begin_block_;
  pages_.erase(pages_.begin() + first, pages_.begin() + last);
  page_ids_.erase(page_ids_.begin() + first, page_ids_.begin() + last);
  for (int* at : {&begin_block_, &floor_block_, &first_owned_}) {
    *at = static_cast<int>(moved(*at, block, count));
  }
  // Others see the same rows as before, at the places where this table has them now.
  visible_tokens_ =
      moved(visible_tokens_, int64_t{block} * block_size, int64_t{count} * block_size);
}

void BlockTable::clear() {
  pages_.clear();
  page_ids_.clear();
  begin_block_ = 0;
  floor_block_ = 0;
  first_owned_ = 0;
  visible_tokens_ = 0;
}

BlockTable BlockTable::fork(int64_t num_tokens) {
  const bool any_shared = std::any_of(pages_.begin(), pages_.end(),
                                      [](const PageRef& page) { return page.is_shared(); });
  visible_tokens_ = any_shared ? std::max(visible_tokens_, num_tokens) : num_tokens;
  BlockTable other;
  other.pages_.reserve(pages_.size());
  for (const PageRef& page : pages_) other.pages_.push_back(page.share());
  other.page_ids_ = page_ids_;
  other.begin_block_ = begin_block_;
  other.floor_block_ = floor_block_;
  other.first_owned_ = end_block();
  return other;
}

}  // namespace kvik
