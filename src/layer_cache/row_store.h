// Rows kept head by head in memory that grows without moving, shared by handles and views: the
// storage of the tail-owned and the block-owned cache.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "kvik/layer_cache/kv_arrays.h"

namespace kvik::internal {

class RowMemory;

// One handle to rows [0, num_rows()). Several handles (forks) and any number of views share one
// memory; a row that any of them can see is never written again. The handle that owns the tail
// appends in place; a handle that may not, because another owns the tail or a fork or a live view
// covers the rows to be written, moves to a copy of its own first, counted by num_copies().
//
// Threads: one at a time per handle; forks and views may be used and dropped on other threads.
class RowStore {
 public:
  // Requires: max_rows >= 1.
  explicit RowStore(int64_t max_rows) : max_rows_(max_rows) {}
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;
  ~RowStore();

  bool has_memory() const { return memory_ != nullptr; }
  int64_t num_rows() const { return num_rows_; }
  // Requires: has_memory().
  const KvArrayShape& shape() const;
  int64_t num_copies() const { return num_copies_; }
  int64_t resident_bytes() const;

  // Ok if rows like these can be appended: a first write, or the shape and dtypes of the first one.
  Status check_append(const ConstTensorView& keys, const ConstTensorView& values) const;

  // Appends the rows and backs room for `capacity` rows in all. Requires: check_append is ok,
  // capacity >= num_rows() + new rows. Errors, nothing changed: out_of_memory.
  Status append(const ConstTensorView& keys, const ConstTensorView& values, int64_t capacity);

  // Backs room for `capacity` rows in all, if that is possible without moving.
  bool back(int64_t capacity);

  // Forgets rows from num_rows on; frees nothing. Requires: 0 <= num_rows <= num_rows().
  void truncate(int64_t num_rows);

  // A view of rows [begin, end), valid and unchanged as long as its owner is held.
  // Requires: has_memory(), 0 <= begin <= end <= num_rows().
  KvArrays view(int64_t begin, int64_t end) const;

  // Another handle with the same rows, counted copies starting at 0.
  std::unique_ptr<RowStore> fork() const;

 private:
  Status move_to_own_memory(const KvArrayShape& shape, int64_t capacity);
  void leave();

  std::shared_ptr<RowMemory> memory_;
  int64_t max_rows_;
  int64_t num_rows_ = 0;
  int64_t num_copies_ = 0;
  std::optional<int64_t> lease_;  // rows that this handle holds without owning the tail
};

}  // namespace kvik::internal
