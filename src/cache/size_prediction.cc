#include "kvik/cache/size_prediction.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cache/exact_rows.h"
#include "core/growth_rule.h"
#include "kvik/core/checked_math.h"

namespace kvik {
namespace {

// One run of a pool, as numbers.
struct Run {
  int64_t page_bytes;
  int64_t limit;     // page_bytes * max_blocks
  int64_t reserved;  // as Buffer::reserve rounds it
  int64_t committed = 0;
};

class Growth {
 public:
  Growth(const PagedCacheOptions& options, std::vector<Run> runs)
      : options_(options), runs_(std::move(runs)) {
    commit(options.num_blocks);
  }

  // One step of PagedCache: pages for the new tokens, or growth ahead of need; then those that left
  // the window are given back. False if the pool is too small.
  bool append(int num_tokens) {
    const int64_t limit = options_.first_tokens.value_or(INT32_MAX);
    const int64_t end = num_tokens_ + num_tokens;
    const bool is_any_stored = std::min(limit, num_tokens_) < std::min(limit, end);
    const int64_t num_pages = ceil_div(std::min(limit, end), options_.block_size) - end_block_;
    if (num_pages > options_.max_blocks - used()) return false;
    const int64_t reused = std::min(num_pages, num_freed_);
    num_freed_ -= reused;
    next_new_ += num_pages - reused;
    if (num_pages > 0) {
      if (next_new_ > covered_pages_) commit(next_new_);
    } else if (is_any_stored) {
      commit_ahead();
    }
    end_block_ += num_pages;
    num_tokens_ = end;
    if (options_.window) drop_before(end - *options_.window - options_.rollback_slack);
    return true;
  }

  // What is appended from here on is another sequence's.
  void begin_sequence() {
    total_tokens_ += std::exchange(num_tokens_, 0);
    begin_block_ = 0;
    end_block_ = 0;
  }

  CacheSize size() const {
    CacheSize size;
    size.num_tokens = total_tokens_ + num_tokens_;
    size.used_blocks = used();
    size.committed_blocks = options_.max_blocks;
    int64_t block_bytes = 0;
    for (const Run& run : runs_) {
      if (run.page_bytes == 0) continue;
      block_bytes += run.page_bytes;
      size.committed_bytes += run.committed;
      size.committed_blocks = std::min(size.committed_blocks, run.committed / run.page_bytes);
    }
    size.nbytes = size.committed_blocks * block_bytes;
    return size;
  }

 private:
  int64_t used() const { return next_new_ - num_freed_; }

  void commit(int64_t num_pages) {
    covered_pages_ = INT64_MAX;
    for (Run& run : runs_) {
      run.committed =
          internal::committed_after(run.committed, num_pages * run.page_bytes, run.reserved);
      if (run.page_bytes > 0) {
        covered_pages_ = std::min(covered_pages_, run.committed / run.page_bytes);
      }
    }
  }

  void commit_ahead() {
    for (Run& run : runs_) {
      if (!internal::wants_step_ahead(run.committed, next_new_ * run.page_bytes, run.limit)) {
        continue;
      }
      run.committed = internal::committed_after(run.committed, run.committed + 1, run.reserved);
      return;
    }
  }

  void drop_before(int64_t position) {
    const int64_t begin = std::max<int64_t>(0, position) / options_.block_size;
    if (begin <= begin_block_) return;
    num_freed_ += begin - begin_block_;
    begin_block_ = begin;
  }

  const PagedCacheOptions& options_;
  std::vector<Run> runs_;
  int64_t total_tokens_ = 0;  // of the sequences before
  int64_t num_tokens_ = 0;    // of the current one
  int64_t begin_block_ = 0;
  int64_t end_block_ = 0;
  int64_t next_new_ = 0;   // pages handed out so far, each counted once
  int64_t num_freed_ = 0;  // of them, free again
  // No run grows for pages below; spares a step that needs nothing the look at all of them.
  int64_t covered_pages_ = 0;
};

// Of one cache, exact rows beside it not counted. The counts are checked.
Result<CacheSize> predict_one(const PagedCacheOptions& options, std::span<const AppendRun> runs,
                              int num_sequences) {
  if (Status status = check(options.spec); !status.ok()) return status;
  if (options.block_size < kTileTokens || options.block_size % kTileTokens != 0 ||
      options.max_blocks < 1 || options.num_blocks < 0 || options.num_blocks > options.max_blocks ||
      (options.window && *options.window < 1) || options.rollback_slack < 0) {
    return invalid_argument("no cache can be made with these options");
  }
  std::vector<Run> pool_runs;
  for (int layer = 0; layer < options.spec.num_layers(); ++layer) {
    for (const int64_t token :
         {token_bytes_k(options.spec, layer), token_bytes_v(options.spec, layer)}) {
      const auto limit = checked_product({token, options.block_size, options.max_blocks});
      if (!limit || *limit > INT64_MAX - 2 * internal::kHugePageBytes) {
        return invalid_argument("max_blocks " + std::to_string(options.max_blocks) +
                                " exceeds 2^63 bytes a layer");
      }
      pool_runs.push_back(
          {token * options.block_size, *limit, round_up(*limit, internal::kHugePageBytes)});
    }
  }
  Growth growth(options, std::move(pool_runs));
  const Status too_small(StatusCode::out_of_pages,
                         "the tokens need more than " + std::to_string(options.max_blocks) +
                             " blocks of " + std::to_string(options.block_size));
  for (int sequence = 0; sequence < num_sequences; ++sequence) {
    growth.begin_sequence();
    for (const AppendRun& run : runs) {
      for (int i = 0; i < run.num_steps; ++i) {
        if (!growth.append(run.num_tokens)) return too_small;
      }
    }
  }
  return growth.size();
}

}  // namespace

Result<CacheSize> predict_cache_size(const PagedCacheOptions& options,
                                     std::span<const AppendRun> runs, int num_sequences) {
  for (const AppendRun& run : runs) {
    if (run.num_steps < 0 || run.num_tokens < 0) return invalid_argument("a count is negative");
  }
  if (num_sequences < 1) return invalid_argument("there is no sequence");
  if (options.exact_first < 0 || options.exact_recent < 0) {
    return invalid_argument("exact_first and exact_recent count tokens");
  }
  Result<CacheSize> size = predict_one(options, runs, num_sequences);
  if (!size.ok()) return size;
  const internal::ExactRowOptions exact = internal::exact_row_options(options);
  for (const std::optional<PagedCacheOptions>& beside : {exact.first, exact.recent}) {
    if (!beside) continue;
    const Result<CacheSize> more = predict_one(*beside, runs, num_sequences);
    if (!more.ok()) return more.status();
    size->nbytes += more->nbytes;
    size->committed_bytes += more->committed_bytes;
    size->exact_bytes += more->committed_bytes;
  }
  return size;
}

}  // namespace kvik
