#include "kvik/page/page_pool.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "core/growth_rule.h"
#include "kvik/core/check.h"
#include "kvik/core/checked_math.h"

namespace kvik {

Result<std::shared_ptr<PagePool>> PagePool::create(std::vector<PageRun> runs, int max_pages) {
  if (max_pages < 0) {
    return invalid_argument("max_pages is " + std::to_string(max_pages));
  }
  for (const PageRun& run : runs) {
    const auto bytes = checked_product({run.page_bytes, max_pages});
    if (!bytes || *bytes > run.buffer.reserved_bytes()) {
      return invalid_argument("a run of " + std::to_string(run.buffer.reserved_bytes()) +
                              " bytes cannot hold " + std::to_string(max_pages) + " pages of " +
                              std::to_string(run.page_bytes));
    }
  }
  return std::shared_ptr<PagePool>(new PagePool(std::move(runs), max_pages));
}

PagePool::PagePool(std::vector<PageRun> runs, int max_pages)
    : runs_(std::move(runs)), max_pages_(max_pages) {
  for (const PageRun& run : runs_) total_page_bytes_ += run.page_bytes;
}

Status PagePool::allocate(int count, std::vector<PageRef>& pages) {
  if (count > num_free()) {
    return {StatusCode::out_of_pages, "need " + std::to_string(count) + " pages, have " +
                                          std::to_string(num_free()) + " free of " +
                                          std::to_string(max_pages_)};
  }
  const int reused = std::min(count, static_cast<int>(free_.size()));
  if (Status status = commit(next_new_ + count - reused); !status.ok()) return status;
  pages.reserve(pages.size() + static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    int page = next_new_;
    if (i < reused) {
      std::pop_heap(free_.begin(), free_.end(), std::greater<>());
      page = free_.back();
      free_.pop_back();
    } else {
      ref_counts_.push_back(0);
      ++next_new_;
    }
    add_ref(page);
    pages.push_back(PageRef(shared_from_this(), page));
  }
  return {};
}

Status PagePool::commit(int count) {
  for (PageRun& run : runs_) {
    if (Status status = run.buffer.commit(count * run.page_bytes); !status.ok()) return status;
  }
  return {};
}

void PagePool::commit_ahead() {
  for (PageRun& run : runs_) {
    const int64_t committed = run.buffer.committed_bytes();
    if (!internal::wants_step_ahead(committed, next_new_ * run.page_bytes,
                                    max_pages_ * run.page_bytes)) {
      continue;
    }
    // A refusal is reported by the allocation that cannot do without.
    (void)run.buffer.commit(committed + 1);
    return;
  }
}

int PagePool::num_committed() const {
  int64_t pages = max_pages_;
  for (const PageRun& run : runs_) {
    if (run.page_bytes > 0) {
      pages = std::min(pages, run.buffer.committed_bytes() / run.page_bytes);
    }
  }
  return static_cast<int>(pages);
}

int64_t PagePool::committed_bytes() const {
  int64_t bytes = 0;
  for (const PageRun& run : runs_) bytes += run.buffer.committed_bytes();
  return bytes;
}

int64_t PagePool::resident_bytes() const {
  int64_t bytes = 0;
  for (const PageRun& run : runs_) bytes += run.buffer.resident_bytes();
  return bytes;
}

void PagePool::copy_page(int from, int to) {
  for (const PageRun& run : runs_) {
    if (run.page_bytes == 0) continue;
    std::memcpy(run.buffer.data() + to * run.page_bytes, run.buffer.data() + from * run.page_bytes,
                static_cast<size_t>(run.page_bytes));
  }
}

void PagePool::add_ref(int page) {
  int32_t& count = ref_counts_[static_cast<size_t>(page)];
  KVIK_CHECK(count < std::numeric_limits<int32_t>::max(), "too many references to one page");
  ++count;
  if (count == 1) ++num_used_;
  if (count == 2) ++num_shared_;
}

void PagePool::release(int page) {
  int32_t& count = ref_counts_[static_cast<size_t>(page)];
  KVIK_CHECK(count > 0, "a page was released more often than it was taken");
  --count;
  if (count == 1) --num_shared_;
  if (count > 0) return;
  --num_used_;
  free_.push_back(page);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

PageRef PageRef::share() const {
  KVIK_CHECK(has_page(), "an empty reference cannot be shared");
  pool_->add_ref(page_);
  return {pool_, page_};
}

}  // namespace kvik
