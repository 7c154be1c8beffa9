// Physical pages: ids with reference counts over buffers that grow without moving.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kvik/core/buffer.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

class PageRef;

// One run: a buffer in which page i takes the bytes [i * page_bytes, (i + 1) * page_bytes).
struct PageRun {
  Buffer buffer;
  int64_t page_bytes = 0;  // 0: the run holds nothing
};

// Hands out pages 0 .. max_pages - 1. One id stands for a slice of every run, so that one id covers
// K and V of all layers of a cache. The lowest free id is handed out first, which keeps resident
// memory dense. Knows no format. Always owned by shared_ptr: a PageRef keeps its pool alive.
// Threads: one at a time.
class KVIK_API PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  // Errors: invalid_argument when max_pages is negative or a run's reservation is too small for it.
  static Result<std::shared_ptr<PagePool>> create(std::vector<PageRun> runs, int max_pages);

  // Appends `count` pages with one reference each to `pages`, all or none. Backs them with memory
  // first; the content of a page is what its last owner left. Requires: count >= 0.
  // Errors: out_of_pages naming need and have, out_of_memory.
  Status allocate(int count, std::vector<PageRef>& pages);

  // Backs the first `count` pages of every run with memory. Errors: out_of_memory.
  Status commit(int count);
  // At most one growth step of one run, if some run is about to need one: called once per decode
  // step, it spreads the cost of growth, which else falls due for all layers at the same token.
  void commit_ahead();

  int max_pages() const { return max_pages_; }
  int num_used() const { return num_used_; }
  int num_free() const { return max_pages_ - num_used_; }
  // Pages backed by memory in every run: what the pool can hand out without asking the system.
  int num_committed() const;
  // Pages with more than one reference.
  int num_shared() const { return num_shared_; }
  int ref_count(int page) const { return ref_counts_[static_cast<size_t>(page)]; }

  int num_runs() const { return static_cast<int>(runs_.size()); }
  // Start of run `run`; fixed for the life of the pool.
  std::byte* run_data(int run) const { return runs_[static_cast<size_t>(run)].buffer.data(); }
  int64_t page_bytes(int run) const { return runs_[static_cast<size_t>(run)].page_bytes; }
  // Of one page over all runs.
  int64_t total_page_bytes() const { return total_page_bytes_; }
  // Memory backed, and memory that the system holds for it now.
  int64_t committed_bytes() const;
  int64_t resident_bytes() const;

  // Copies all bytes of page `from` to page `to` in every run. Requires: both are in use.
  void copy_page(int from, int to);

 private:
  friend class PageRef;
  PagePool(std::vector<PageRun> runs, int max_pages);
  void add_ref(int page);
  void release(int page);

  std::vector<PageRun> runs_;
  int max_pages_;
  int64_t total_page_bytes_ = 0;
  std::vector<int32_t> ref_counts_;  // of pages 0 .. next_new_ - 1
  std::vector<int32_t> free_;        // min-heap of freed ids below next_new_
  int next_new_ = 0;                 // ids from here on were never handed out
  int num_used_ = 0;
  int num_shared_ = 0;
};

// One reference to one page; gives it back on destruction. Move-only; share() makes another.
class KVIK_API PageRef {
 public:
  PageRef() = default;
  PageRef(PageRef&& other) noexcept
      : pool_(std::move(other.pool_)), page_(std::exchange(other.page_, 0)) {}
  PageRef& operator=(PageRef&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(page_, other.page_);
    return *this;
  }
  PageRef(const PageRef&) = delete;
  PageRef& operator=(const PageRef&) = delete;
  ~PageRef() {
    if (pool_ != nullptr) pool_->release(page_);
  }

  bool has_page() const { return pool_ != nullptr; }
  // Requires: has_page().
  int page() const { return page_; }
  PageRef share() const;
  bool is_shared() const { return pool_->ref_count(page_) > 1; }

 private:
  friend class PagePool;
  PageRef(std::shared_ptr<PagePool> pool, int page) : pool_(std::move(pool)), page_(page) {}

  std::shared_ptr<PagePool> pool_;
  int page_ = 0;
};

}  // namespace kvik
