#include "kvik/layer_cache/block_owned_kv_cache.h"

#include <algorithm>
#include <utility>

#include "kvik/core/checked_math.h"
#include "kvik/layer_cache/tail_owned_kv_cache.h"
#include "layer_cache/owned_rows.h"

namespace kvik {

using internal::OwnedRows;
using internal::parse_owned_meta;

namespace {

constexpr int64_t kMostRows = int64_t{1} << 48;

std::string num(int64_t x) { return std::to_string(x); }

Status check_block_size(int64_t block_size) {
  if (block_size >= 1 && block_size <= kMostRows) return {};
  return invalid_argument("block_size is " + num(block_size) + "; it counts rows, at least 1");
}

}  // namespace

BlockOwnedKVCache::BlockOwnedKVCache(DetachMode mode, std::unique_ptr<OwnedRows> rows)
    : mode_(mode), rows_(std::move(rows)) {}
BlockOwnedKVCache::BlockOwnedKVCache(BlockOwnedKVCache&&) noexcept = default;
BlockOwnedKVCache& BlockOwnedKVCache::operator=(BlockOwnedKVCache&&) noexcept = default;
BlockOwnedKVCache::~BlockOwnedKVCache() = default;

Result<BlockOwnedKVCache> BlockOwnedKVCache::create(const BlockOwnedOptions& options) {
  if (Status status = check_block_size(options.block_size); !status.ok()) return status;
  if (options.max_rows < 1 || options.max_rows > kMostRows) {
    return invalid_argument("max_rows is " + num(options.max_rows) + "; it must be at least 1");
  }
  return BlockOwnedKVCache(options.mode,
                           std::make_unique<OwnedRows>(options.block_size, options.max_rows));
}

Result<BlockOwnedKVCache> BlockOwnedKVCache::from_cache(const TailOwnedKVCache& entry,
                                                        DetachMode mode, int64_t block_size) {
  if (Status status = check_block_size(block_size); !status.ok()) return status;
  return BlockOwnedKVCache(mode, entry.rows_->share(block_size, entry.rows_->max_rows()));
}

Result<BlockOwnedKVCache> BlockOwnedKVCache::from_cache(const BlockOwnedKVCache& entry,
                                                        DetachMode mode, int64_t block_size) {
  if (Status status = check_block_size(block_size); !status.ok()) return status;
  return BlockOwnedKVCache(mode, entry.rows_->share(block_size, entry.rows_->max_rows()));
}

Result<TailOwnedKVCache> TailOwnedKVCache::from_cache(const BlockOwnedKVCache& entry,
                                                      DetachMode mode,
                                                      std::optional<int64_t> step) {
  const int64_t unit = step.value_or(TailOwnedOptions{}.step);
  Result<TailOwnedKVCache> fresh = create({unit, mode, entry.rows_->max_rows()});
  if (!fresh.ok()) return fresh;
  fresh->rows_ = entry.rows_->share(unit, entry.rows_->max_rows());
  return fresh;
}

BlockOwnedKVCache BlockOwnedKVCache::fork() const { return {mode_, rows_->fork()}; }

Status BlockOwnedKVCache::update_without_fetch(const ConstTensorView& keys,
                                               const ConstTensorView& values) {
  const int64_t num_new = keys.rank == 4 ? keys.dim(2) : 0;
  const auto last = checked_sum({offset(), num_new, -1});
  if (!last) return invalid_argument("the cache cannot hold 2^63 rows");
  return rows_->append(keys, values, *last / block_size() - offset() / block_size() + 1);
}

Result<KvArrays> BlockOwnedKVCache::update_and_fetch(const ConstTensorView& keys,
                                                     const ConstTensorView& values) {
  if (Status status = update_without_fetch(keys, values); !status.ok()) return status;
  return rows_->fetch(keys, values);
}

std::vector<BlockOwnedKVCache::Slice> BlockOwnedKVCache::active_block_slices() const {
  std::vector<Slice> slices;
  for (int64_t start = 0; start < offset(); start += block_size()) {
    slices.push_back({start, rows_->view(start, std::min(start + block_size(), offset()))});
  }
  return slices;
}

int64_t BlockOwnedKVCache::block_size() const { return rows_->unit(); }
int64_t BlockOwnedKVCache::num_blocks() const { return ceil_div(rows_->capacity(), block_size()); }
int64_t BlockOwnedKVCache::offset() const { return rows_->offset(); }
int64_t BlockOwnedKVCache::nbytes() const { return rows_->nbytes(); }
int64_t BlockOwnedKVCache::resident_bytes() const { return rows_->resident_bytes(); }
int64_t BlockOwnedKVCache::trim(int64_t n) { return rows_->trim(n); }
std::optional<KvArrays> BlockOwnedKVCache::state() const { return rows_->state(); }

std::optional<KvArrayShape> BlockOwnedKVCache::shape() const {
  if (!rows_->has_memory()) return std::nullopt;
  return rows_->shape();
}

Status BlockOwnedKVCache::set_state(const std::optional<KvArrays>& state) {
  if (state) return rows_->replace(state->keys, state->values, state->num_rows());
  rows_->clear();
  return {};
}

std::optional<ConstTensorView> BlockOwnedKVCache::keys() const {
  if (!rows_->has_memory()) return std::nullopt;
  return rows_->view(0, offset()).keys;
}

std::optional<ConstTensorView> BlockOwnedKVCache::values() const {
  if (!rows_->has_memory()) return std::nullopt;
  return rows_->view(0, offset()).values;
}

Status BlockOwnedKVCache::set_keys(const std::optional<ConstTensorView>& keys) {
  return rows_->set_half(true, keys);
}

Status BlockOwnedKVCache::set_values(const std::optional<ConstTensorView>& values) {
  return rows_->set_half(false, values);
}

Result<CausalMask> BlockOwnedKVCache::make_mask(int64_t num_queries, bool return_array,
                                                std::optional<int64_t> window) const {
  return make_causal_mask(num_queries, offset(), return_array, window);
}

Result<CausalMask> BlockOwnedKVCache::make_mask(int64_t query_len, int64_t key_len,
                                                MaskType type) const {
  return make_mask_array(query_len, key_len, type);
}

std::vector<std::string> BlockOwnedKVCache::meta_state() const {
  return {num(block_size()), num(offset()), std::string(detach_mode_name(mode_))};
}

Status BlockOwnedKVCache::set_meta_state(std::span<const std::string> meta) {
  if (meta.empty()) return {};
  const Result<internal::OwnedMeta> parsed = parse_owned_meta("block_size", meta, mode_);
  if (!parsed.ok()) return parsed.status();
  if (Status status = check_block_size(parsed->unit); !status.ok()) return status;
  if (parsed->unit != block_size() && rows_->has_memory()) {
    return invalid_argument("the rows lie in blocks of " + num(block_size()) +
                            "; a meta state of blocks of " + num(parsed->unit) +
                            " does not fit them");
  }
  if (Status status = rows_->restore(parsed->unit, parsed->offset); !status.ok()) return status;
  mode_ = parsed->mode;
  return {};
}

TailOwnerStats BlockOwnedKVCache::tail_owner_stats() const {
  TailOwnerStats stats = rows_->stats();
  stats.nbytes = nbytes();
  stats.mode = detach_mode_name(mode_);
  return stats;
}

}  // namespace kvik
