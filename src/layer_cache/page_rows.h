// One handle to the rows of a batch of equally long sequences in pages that forks share: the
// storage of the paged one-layer cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kvik/backend/backend.h"
#include "kvik/cache/paged_cache.h"
#include "kvik/layer_cache/kv_arrays.h"
#include "kvik/layer_cache/kv_codes.h"

namespace kvik::internal {

struct SharedPool;

// Threads: one at a time per handle; forks on other threads wait, the pool having one lock.
class PageRows {
 public:
  // Room for `limit_tokens` tokens of each batch row, and for a few forks. Requires: limit_tokens
  // >= 0, page_tokens a positive multiple of 16. Errors: as PagedCache::create.
  static Result<std::unique_ptr<PageRows>> create(const KvArrayShape& shape, KvFormat format,
                                                  int64_t page_tokens, int64_t limit_tokens,
                                                  const std::shared_ptr<Backend>& backend);
  ~PageRows();
  PageRows(const PageRows&) = delete;
  PageRows& operator=(const PageRows&) = delete;

  const KvArrayShape& shape() const;
  KvFormat format() const;
  int64_t limit_tokens() const;
  int64_t page_tokens() const;
  int64_t num_rows() const { return sequences_.front().num_cached(); }

  // Appends [B, H_kv, S, D] arrays. Requires: their shape is shape(). Errors, nothing changed:
  // out_of_pages when forks have used the pool up, out_of_memory, invalid_argument for a row that
  // the format refuses.
  Status append(const ConstTensorView& keys, const ConstTensorView& values);
  // Appends rows of this format as they are. Requires: spans of kv_codes_bytes, shape() and
  // format() those of the codes. Errors: as append.
  Status append_codes(const KvCodes& codes);
  // Holds the pages that `end` tokens of each batch row may need beyond those that are held, until
  // an append takes them; replaces what was held so. Errors, nothing changed: out_of_pages,
  // out_of_memory.
  Status hold(int64_t end);
  // Requires: 0 <= num_rows <= num_rows().
  void truncate(int64_t num_rows);
  std::unique_ptr<PageRows> fork() const;

  // A copy of all rows: bit for bit, or what they stand for where they are stored in another form.
  // Errors: out_of_memory.
  Result<KvArrays> gather() const;
  // The rows from `first` on, into arrays that decode_rows takes.
  Status decode(int64_t first, const TensorView& keys, const TensorView& values) const;
  // All rows as they are stored. Errors: out_of_memory.
  Result<KvCodes> codes(KvCodeLayout layout) const;
  // Calls `read` with the rows of all sequences, under the lock.
  Status read(const std::function<Status(const KvView&)>& read) const;

  // Pages of one batch row, in order.
  std::vector<int32_t> pages_of(int64_t batch_row) const;
  CacheStats stats() const;

 private:
  explicit PageRows(std::shared_ptr<SharedPool> pool);
  // One step of all sequences, num_rows tokens each; `write` fills it.
  Status step(int64_t num_rows, const std::function<void(AppendPlan&)>& write);
  // hold() under the lock.
  Status hold_pages(int64_t end);

  std::shared_ptr<SharedPool> pool_;
  mutable std::vector<Sequence> sequences_;  // one per batch row; a plan to read borrows them
  // Held pages: an open plan of sequences that nobody reads. First the sequences, then the plan.
  std::vector<Sequence> holders_;
  std::optional<AppendPlan> held_;
  int64_t held_end_ = 0;
};

}  // namespace kvik::internal
