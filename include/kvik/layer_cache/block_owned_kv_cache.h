// The block-owned cache of one layer: rows counted in blocks of a fixed number of rows.
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
class PagedKVCache;
class TailOwnedKVCache;

struct BlockOwnedOptions {
  int64_t block_size = 1024;  // rows
  DetachMode mode = DetachMode::contiguous_eval;
  int64_t max_rows = int64_t{1} << 18;  // as TailOwnedOptions::max_rows
};

// Rows [i * block_size, (i + 1) * block_size) are block i. All blocks lie in one range of
// addresses, so that reading all rows joins nothing: it is a view. Memory, views, forks, copies and
// threads are those of TailOwnedKVCache. Move-only.
class KVIK_API BlockOwnedKVCache {
 public:
  // Errors: invalid_argument for a block size or max_rows below 1.
  static Result<BlockOwnedKVCache> create(const BlockOwnedOptions& options = {});
  // As TailOwnedKVCache::from_cache; the block size is always the argument.
  static Result<BlockOwnedKVCache> from_cache(const TailOwnedKVCache& entry, DetachMode mode,
                                              int64_t block_size = 1024);
  static Result<BlockOwnedKVCache> from_cache(const BlockOwnedKVCache& entry, DetachMode mode,
                                              int64_t block_size = 1024);
  static Result<BlockOwnedKVCache> from_cache(PagedKVCache& entry, DetachMode mode,
                                              int64_t block_size = 1024);

  BlockOwnedKVCache(BlockOwnedKVCache&&) noexcept;
  BlockOwnedKVCache& operator=(BlockOwnedKVCache&&) noexcept;
  ~BlockOwnedKVCache();
  BlockOwnedKVCache fork() const;

  // Appends the rows, counted as one update per block that they touch. No rows: changes nothing.
  // Errors, nothing changed: as TailOwnedKVCache::update_and_fetch.
  Status update_without_fetch(const ConstTensorView& keys, const ConstTensorView& values);
  // The same, and returns all valid rows.
  Result<KvArrays> update_and_fetch(const ConstTensorView& keys, const ConstTensorView& values);

  // The blocks that hold valid rows, in order, the last one cut to its valid rows.
  struct Slice {
    int64_t start = 0;  // first row
    KvArrays rows;
  };
  std::vector<Slice> active_block_slices() const;

  int64_t block_size() const;
  DetachMode mode() const { return mode_; }
  // Blocks backed with memory; a trim keeps them.
  int64_t num_blocks() const;
  int64_t offset() const;
  int64_t size() const { return offset(); }
  // No blocks, or no valid rows.
  bool empty() const { return offset() == 0; }
  int64_t capacity() const { return num_blocks() * block_size(); }  // rows
  // capacity() * bytes of a row; and what the system holds for it now.
  int64_t nbytes() const;
  int64_t resident_bytes() const;
  std::optional<KvArrayShape> shape() const;

  bool is_trimmable() const { return true; }
  // Drops min(n, offset) newest rows and returns that number; 0 for a negative n.
  int64_t trim(int64_t n);

  // As the members of TailOwnedKVCache.
  std::optional<KvArrays> state() const;
  Status set_state(const std::optional<KvArrays>& state);
  std::optional<ConstTensorView> keys() const;
  std::optional<ConstTensorView> values() const;
  Status set_keys(const std::optional<ConstTensorView>& keys);
  Status set_values(const std::optional<ConstTensorView>& values);
  Result<CausalMask> make_mask(int64_t num_queries, bool return_array = false,
                               std::optional<int64_t> window = std::nullopt) const;
  Result<CausalMask> make_mask(int64_t query_len, int64_t key_len, MaskType type) const;

  // (block_size, offset, mode).
  std::vector<std::string> meta_state() const;
  // As TailOwnedKVCache::set_meta_state; another block size is an invalid_argument unless the cache
  // has no rows yet.
  Status set_meta_state(std::span<const std::string> meta);

  TailOwnerStats tail_owner_stats() const;

 private:
  friend class TailOwnedKVCache;
  BlockOwnedKVCache(DetachMode mode, std::unique_ptr<internal::OwnedRows> rows);

  DetachMode mode_;
  std::unique_ptr<internal::OwnedRows> rows_;
};

}  // namespace kvik
