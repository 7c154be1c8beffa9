// What the tail-owned and the block-owned cache have in common: one store of rows, its counters,
// and capacity in whole units (a step, a block).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvik/layer_cache/detach_mode.h"
#include "kvik/layer_cache/tail_owner_stats.h"
#include "layer_cache/pending_halves.h"
#include "layer_cache/row_store.h"

namespace kvik::internal {

class OwnedRows {
 public:
  // Requires: unit >= 1, max_rows >= 1.
  OwnedRows(int64_t unit, int64_t max_rows)
      : unit_(unit), max_rows_(max_rows), store_(std::make_unique<RowStore>(max_rows)) {}

  int64_t unit() const { return unit_; }
  int64_t max_rows() const { return max_rows_; }
  int64_t offset() const { return store_->num_rows(); }
  bool has_memory() const { return store_->has_memory(); }
  // Requires: has_memory().
  const KvArrayShape& shape() const { return store_->shape(); }
  // Rows for which memory is backed: the smallest multiple of the unit that has held the rows since
  // they were last replaced.
  int64_t capacity() const { return capacity_; }
  int64_t nbytes() const;
  int64_t resident_bytes() const { return store_->resident_bytes(); }

  // Appends the rows, counted as `num_pieces` updates. Errors, nothing changed: as RowStore.
  Status append(const ConstTensorView& keys, const ConstTensorView& values, int64_t num_pieces);
  KvArrays view(int64_t begin, int64_t end) const { return store_->view(begin, end); }
  // All rows; if there is no memory, arrays of no rows shaped like `like_keys`, `like_values`.
  Result<KvArrays> fetch(const ConstTensorView& like_keys,
                         const ConstTensorView& like_values) const;
  std::optional<KvArrays> state() const;
  // Puts a copy of rows [0, num_rows) of the arrays in the place of all rows.
  Status replace(const ConstTensorView& keys, const ConstTensorView& values, int64_t num_rows);
  void clear();
  int64_t trim(int64_t n);
  // Takes the unit and keeps the first `rows` rows. Errors, nothing changed: invalid_argument for
  // more rows than there are.
  Status restore(int64_t unit, int64_t rows);

  // Sets one half: at once if it fits the other half's rows, else when the other one comes.
  Status set_half(bool is_keys, const std::optional<ConstTensorView>& half);

  std::unique_ptr<OwnedRows> fork() const;
  // The same rows under another unit and fresh counters; nothing is copied.
  std::unique_ptr<OwnedRows> share(int64_t unit, int64_t max_rows) const;

  // All but the mode.
  TailOwnerStats stats() const;

 private:
  int64_t unit_;
  int64_t max_rows_;
  std::unique_ptr<RowStore> store_;
  int64_t capacity_ = 0;
  int64_t past_copies_ = 0;  // of stores that were replaced
  TailOwnerStats counters_;
  PendingHalves halves_;
};

// The strings of a meta state: unit, offset, and the mode where it is given.
struct OwnedMeta {
  int64_t unit = 0;
  int64_t offset = 0;
  DetachMode mode;
};
// `mode` is kept where the strings name none. Errors: invalid_argument that names the item.
Result<OwnedMeta> parse_owned_meta(const char* unit_name, std::span<const std::string> meta,
                                   DetachMode mode);

// Reads a whole number of a meta state. Errors: invalid_argument that names the item.
Result<int64_t> parse_meta_number(const char* name, const std::string& text);

}  // namespace kvik::internal
