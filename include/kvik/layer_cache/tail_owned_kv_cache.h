// The tail-owned cache of one layer: contiguous arrays of which an update writes only the new rows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/layer_cache/causal_mask.h"
#include "kvik/layer_cache/detach_mode.h"
#include "kvik/layer_cache/kv_arrays.h"
#include "kvik/layer_cache/tail_owner_stats.h"

namespace kvik {

namespace internal {
class OwnedRows;
}
class BlockOwnedKVCache;
class PagedKVCache;

struct TailOwnedOptions {
  int64_t step = 256;  // rows; the capacity is a multiple of it
  DetachMode mode = DetachMode::contiguous_eval;
  // Rows for which address space is reserved at the first write. Growth up to it moves nothing;
  // growth past it copies the rows once, counted, and doubles it.
  int64_t max_rows = int64_t{1} << 18;
};

// Keys and values of one layer, [B, H_kv, T, D]; batch, heads, head dims and dtypes are fixed by
// the first write. Rows of one head lie one after the other; those of other heads at a fixed
// stride.
//
// An update writes exactly the new rows, also when the memory grows and when arrays returned
// earlier are alive: those keep their content for ever. Only when the rows to be written are still
// visible elsewhere (to a live array or a fork, after a trim) or belong to another handle (after a
// fork) does an update copy the history first, once, counted as `copies`.
//
// Move-only; fork() makes a second cache with the same rows (deepcopy). Threads: one at a time;
// different caches, forks included, are independent, and arrays may be dropped on any thread.
class KVIK_API TailOwnedKVCache {
 public:
  // Errors: invalid_argument for a step or max_rows below 1.
  static Result<TailOwnedKVCache> create(const TailOwnedOptions& options = {});
  // A cache that holds a copy of the first `offset` rows (none: all). Errors: as create and
  // update_and_fetch; invalid_argument for an offset that does not fit the rows.
  static Result<TailOwnedKVCache> create(const TailOwnedOptions& options,
                                         const ConstTensorView& keys, const ConstTensorView& values,
                                         std::optional<int64_t> offset = std::nullopt);
  // Takes the rows of another cache: by reference from a tail- or block-owned one (nothing is
  // copied; each of the two appends as after a fork), else by one copy. `step`: none takes the
  // entry's step, or 256 where it has none. Errors: as create.
  static Result<TailOwnedKVCache> from_cache(const TailOwnedKVCache& entry, DetachMode mode,
                                             std::optional<int64_t> step = std::nullopt);
  static Result<TailOwnedKVCache> from_cache(const BlockOwnedKVCache& entry, DetachMode mode,
                                             std::optional<int64_t> step = std::nullopt);
  static Result<TailOwnedKVCache> from_cache(PagedKVCache& entry, DetachMode mode,
                                             std::optional<int64_t> step = std::nullopt);

  TailOwnedKVCache(TailOwnedKVCache&&) noexcept;
  TailOwnedKVCache& operator=(TailOwnedKVCache&&) noexcept;
  ~TailOwnedKVCache();
  TailOwnedKVCache fork() const;

  // Appends the rows and returns all valid ones, [B, H_kv, offset, D]. No rows: changes nothing.
  // Errors, nothing changed: invalid_argument for shapes or dtypes that differ from the first
  // write; out_of_memory.
  Result<KvArrays> update_and_fetch(const ConstTensorView& keys, const ConstTensorView& values);

  int64_t offset() const;
  int64_t size() const { return offset(); }
  // Whether nothing was written yet; stays false after a trim to zero.
  bool empty() const;
  int64_t step() const;
  DetachMode mode() const { return mode_; }
  // Rows for which memory is backed: the smallest multiple of step that has held the rows so far.
  int64_t capacity() const;
  // capacity() * bytes of a row; and what the system holds for it now, growth steps included.
  int64_t nbytes() const;
  int64_t resident_bytes() const;
  // Fixed by the first write; none while empty.
  std::optional<KvArrayShape> shape() const;

  bool is_trimmable() const { return true; }
  // Drops min(n, offset) newest rows and returns that number; 0 for a negative n. Frees nothing.
  int64_t trim(int64_t n);

  // The valid rows; none while empty.
  std::optional<KvArrays> state() const;
  // Replaces all rows by a copy of these; the offset becomes their number, counters stay. none:
  // empties the cache; the next write may have another shape. Errors, nothing changed: as
  // update_and_fetch of a fresh cache.
  Status set_state(const std::optional<KvArrays>& state);

  // (step, offset, mode). Restore the state first, then this.
  std::vector<std::string> meta_state() const;
  // Takes 2 or 3 items; an empty list is ignored. Errors, nothing changed: invalid_argument for
  // other counts, texts that are no numbers, a step below 1, an unknown mode, or an offset that is
  // negative or exceeds the valid rows.
  Status set_meta_state(std::span<const std::string> meta);

  // One half of state(), borrowed until the cache changes. Setting takes effect at once when the
  // array fits the other half's rows, else when the other half is set too; none empties the cache.
  std::optional<ConstTensorView> keys() const;
  std::optional<ConstTensorView> values() const;
  Status set_keys(const std::optional<ConstTensorView>& keys);
  Status set_values(const std::optional<ConstTensorView>& values);

  // make_causal_mask at this offset; make_mask_array.
  Result<CausalMask> make_mask(int64_t num_queries, bool return_array = false,
                               std::optional<int64_t> window = std::nullopt) const;
  Result<CausalMask> make_mask(int64_t query_len, int64_t key_len, MaskType type) const;

  TailOwnerStats tail_owner_stats() const;

 private:
  friend class BlockOwnedKVCache;
  TailOwnedKVCache(DetachMode mode, std::unique_ptr<internal::OwnedRows> rows);

  DetachMode mode_;
  std::unique_ptr<internal::OwnedRows> rows_;
};

}  // namespace kvik
