#include "kvik/layer_cache/tail_owned_kv_cache.h"

#include <utility>

#include "layer_cache/json.h"
#include "layer_cache/owned_rows.h"

namespace kvik {

using internal::OwnedRows;
using internal::parse_owned_meta;

namespace {

constexpr int64_t kMostRows = int64_t{1} << 48;

std::string num(int64_t x) { return std::to_string(x); }

Status check_sizes(int64_t step, int64_t max_rows) {
  if (step < 1 || step > kMostRows) {
    return invalid_argument("step is " + num(step) + "; it counts rows, at least 1");
  }
  if (max_rows < 1 || max_rows > kMostRows) {
    return invalid_argument("max_rows is " + num(max_rows) + "; it must be at least 1");
  }
  return {};
}

}  // namespace

std::string to_json(const TailOwnerStats& stats) {
  return internal::JsonObject()
      .add("mode", stats.mode)
      .add("updates", stats.updates)
      .add("arrays", stats.arrays)
      .add("bytes", stats.bytes)
      .add("time_s", stats.time_s)
      .add("copies", stats.copies)
      .add("nbytes", stats.nbytes)
      .add("resident_bytes", stats.resident_bytes)
      .text();
}

TailOwnedKVCache::TailOwnedKVCache(DetachMode mode, std::unique_ptr<OwnedRows> rows)
    : mode_(mode), rows_(std::move(rows)) {}
TailOwnedKVCache::TailOwnedKVCache(TailOwnedKVCache&&) noexcept = default;
TailOwnedKVCache& TailOwnedKVCache::operator=(TailOwnedKVCache&&) noexcept = default;
TailOwnedKVCache::~TailOwnedKVCache() = default;

Result<TailOwnedKVCache> TailOwnedKVCache::create(const TailOwnedOptions& options) {
  if (Status status = check_sizes(options.step, options.max_rows); !status.ok()) return status;
  return TailOwnedKVCache(options.mode,
                          std::make_unique<OwnedRows>(options.step, options.max_rows));
}

Result<TailOwnedKVCache> TailOwnedKVCache::create(const TailOwnedOptions& options,
                                                  const ConstTensorView& keys,
                                                  const ConstTensorView& values,
                                                  std::optional<int64_t> offset) {
  Result<TailOwnedKVCache> cache = create(options);
  if (!cache.ok()) return cache;
  if (Result<KvArrayShape> shape = shape_of(keys, values); !shape.ok()) return shape.status();
  const int64_t num_rows = offset.value_or(keys.dim(2));
  if (num_rows < 0 || num_rows > keys.dim(2)) {
    return invalid_argument("offset " + num(num_rows) + " does not fit the " + num(keys.dim(2)) +
                            " rows");
  }
  if (Status status = cache->rows_->replace(keys, values, num_rows); !status.ok()) return status;
  return cache;
}

Result<TailOwnedKVCache> TailOwnedKVCache::from_cache(const TailOwnedKVCache& entry,
                                                      DetachMode mode,
                                                      std::optional<int64_t> step) {
  const int64_t unit = step.value_or(entry.step());
  if (Status status = check_sizes(unit, 1); !status.ok()) return status;
  return TailOwnedKVCache(mode, entry.rows_->share(unit, entry.rows_->max_rows()));
}

TailOwnedKVCache TailOwnedKVCache::fork() const { return {mode_, rows_->fork()}; }

Result<KvArrays> TailOwnedKVCache::update_and_fetch(const ConstTensorView& keys,
                                                    const ConstTensorView& values) {
  if (Status status = rows_->append(keys, values, 1); !status.ok()) return status;
  return rows_->fetch(keys, values);
}

int64_t TailOwnedKVCache::offset() const { return rows_->offset(); }
bool TailOwnedKVCache::empty() const { return !rows_->has_memory(); }
int64_t TailOwnedKVCache::step() const { return rows_->unit(); }
int64_t TailOwnedKVCache::capacity() const { return rows_->capacity(); }
int64_t TailOwnedKVCache::nbytes() const { return rows_->nbytes(); }
int64_t TailOwnedKVCache::resident_bytes() const { return rows_->resident_bytes(); }
int64_t TailOwnedKVCache::trim(int64_t n) { return rows_->trim(n); }
std::optional<KvArrays> TailOwnedKVCache::state() const { return rows_->state(); }

std::optional<KvArrayShape> TailOwnedKVCache::shape() const {
  if (!rows_->has_memory()) return std::nullopt;
  return rows_->shape();
}

Status TailOwnedKVCache::set_state(const std::optional<KvArrays>& state) {
  if (state) return rows_->replace(state->keys, state->values, state->num_rows());
  rows_->clear();
  return {};
}

std::vector<std::string> TailOwnedKVCache::meta_state() const {
  return {num(step()), num(offset()), std::string(detach_mode_name(mode_))};
}

Status TailOwnedKVCache::set_meta_state(std::span<const std::string> meta) {
  if (meta.empty()) return {};
  const Result<internal::OwnedMeta> parsed = parse_owned_meta("step", meta, mode_);
  if (!parsed.ok()) return parsed.status();
  if (Status status = check_sizes(parsed->unit, 1); !status.ok()) return status;
  if (Status status = rows_->restore(parsed->unit, parsed->offset); !status.ok()) return status;
  mode_ = parsed->mode;
  return {};
}

std::optional<ConstTensorView> TailOwnedKVCache::keys() const {
  if (empty()) return std::nullopt;
  return rows_->view(0, offset()).keys;
}

std::optional<ConstTensorView> TailOwnedKVCache::values() const {
  if (empty()) return std::nullopt;
  return rows_->view(0, offset()).values;
}

Status TailOwnedKVCache::set_keys(const std::optional<ConstTensorView>& keys) {
  return rows_->set_half(true, keys);
}

Status TailOwnedKVCache::set_values(const std::optional<ConstTensorView>& values) {
  return rows_->set_half(false, values);
}

Result<CausalMask> TailOwnedKVCache::make_mask(int64_t num_queries, bool return_array,
                                               std::optional<int64_t> window) const {
  return make_causal_mask(num_queries, offset(), return_array, window);
}

Result<CausalMask> TailOwnedKVCache::make_mask(int64_t query_len, int64_t key_len,
                                               MaskType type) const {
  return make_mask_array(query_len, key_len, type);
}

TailOwnerStats TailOwnedKVCache::tail_owner_stats() const {
  TailOwnerStats stats = rows_->stats();
  stats.mode = detach_mode_name(mode_);
  return stats;
}

}  // namespace kvik
