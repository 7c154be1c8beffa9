#include "kvik/layer_cache/paged_kv_cache.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "kvik/core/check.h"
#include "kvik/core/checked_math.h"
#include "kvik/layer_cache/block_owned_kv_cache.h"
#include "kvik/layer_cache/tail_owned_kv_cache.h"
#include "layer_cache/copy_rows.h"
#include "layer_cache/owned_rows.h"
#include "layer_cache/paged_state.h"

namespace kvik {

using internal::format_text;
using internal::PagedState;
using internal::parse_meta_number;
using internal::turboquant_name;

namespace {

constexpr int64_t kMost = int64_t{1} << 31;

std::string num(int64_t x) { return std::to_string(x); }

Status check_number(const char* name, int64_t value, int64_t least) {
  if (value >= least && value <= kMost) return {};
  return invalid_argument(std::string(name) + " is " + num(value) + "; it must lie in " +
                          num(least) + " to 2^31");
}

Status check_geometry(int64_t block_size, int64_t num_blocks) {
  if (Status s = check_number("block_size", block_size, 1); !s.ok()) return s;
  if (Status s = check_number("num_blocks", num_blocks, 1); !s.ok()) return s;
  return check_number("block_size * num_blocks", block_size * num_blocks, 1);
}

Status not_one_of(const char* name, KvCode code, const char* wanted) {
  return invalid_argument(std::string(name) + " is " + std::string(kv_code_name(code)) +
                          "; it must be one of " + wanted);
}

// Whether the codes are what the options say; head dims are checked by the first write.
Status check_storage(const PagedKVCacheOptions& options) {
  if (options.turboquant) {
    const KvCode k = options.turboquant->k_quant;
    const KvCode v = options.turboquant->v_quant;
    if (k < KvCode::tqk_q8_0 || k > KvCode::tqk_int2) {
      return not_one_of("turboquant.k_quant", k,
                        "tqk_q8_0, tqk_uint8, tqk_q5_0, tqk_q4_0, tqk_int2");
    }
    if (v < KvCode::tqv_q2_0 || v > KvCode::tqv_q8_0) {
      return not_one_of("turboquant.v_quant", v,
                        "tqv_q2_0, tqv_q3_0, tqv_q4_0, tqv_q5_0, tqv_q8_0");
    }
  }
  if (options.kv_quant && options.kv_quant->mode) {
    const KvCode mode = *options.kv_quant->mode;
    if (mode < KvCode::q8 || mode > KvCode::q4)
      return not_one_of("kv_quant.mode", mode, "q8, q6, q4");
  }
  if (!options.format) return {};
  if (options.turboquant || (options.kv_quant && options.kv_quant->mode)) {
    return invalid_argument("format is set beside turboquant or kv_quant; leave it or them unset");
  }
  if (!stores_keys(options.format->k)) {
    return invalid_argument("format: " + std::string(kv_code_name(options.format->k)) +
                            " stores values only");
  }
  if (!stores_values(options.format->v)) {
    return invalid_argument("format: " + std::string(kv_code_name(options.format->v)) +
                            " stores keys only");
  }
  return {};
}

Status check_options(const PagedKVCacheOptions& options) {
  if (Status s = check_geometry(options.block_size, options.num_blocks); !s.ok()) return s;
  if (Status s = check_number("max_tokens", options.max_tokens, 1); !s.ok()) return s;
  if (Status s = check_number("context_window", options.context_window.value_or(1), 1); !s.ok()) {
    return s;
  }
  if (Status s = check_number("sliding_window", options.sliding_window.value_or(1), 1); !s.ok()) {
    return s;
  }
  if (Status s = check_number("max_q_len", options.max_q_len.value_or(1), 1); !s.ok()) return s;
  if (Status s = check_number("partition_threshold", options.partition_threshold, 0); !s.ok()) {
    return s;
  }
  return check_storage(options);
}

}  // namespace

PagedKVCache::PagedKVCache(std::unique_ptr<PagedState> state) : state_(std::move(state)) {}
PagedKVCache::PagedKVCache(PagedKVCache&&) noexcept = default;
PagedKVCache& PagedKVCache::operator=(PagedKVCache&&) noexcept = default;
PagedKVCache::~PagedKVCache() = default;

Result<PagedKVCache> PagedKVCache::create(const PagedKVCacheOptions& options,
                                          std::shared_ptr<Backend> backend) {
  if (backend == nullptr) return invalid_argument("a paged cache needs a back end");
  if (Status status = check_options(options); !status.ok()) return status;
  auto state = std::make_unique<PagedState>();
  state->options = options;
  state->backend = std::move(backend);
  state->num_blocks = options.num_blocks;
  return PagedKVCache(std::move(state));
}

Result<PagedKVCache> PagedKVCache::create(const PagedKVCacheOptions& options,
                                          std::shared_ptr<Backend> backend,
                                          const ConstTensorView& keys,
                                          const ConstTensorView& values,
                                          std::optional<int64_t> offset) {
  Result<PagedKVCache> cache = create(options, std::move(backend));
  if (!cache.ok()) return cache;
  const int64_t num_rows = offset.value_or(keys.rank == 4 ? keys.dim(2) : 0);
  if (Status status = cache->state_->load(keys, values, num_rows); !status.ok()) return status;
  return cache;
}

namespace {

Result<PagedKVCache> copy_of(const std::optional<KvArrays>& rows,
                             const PagedKVCacheOptions& options, std::shared_ptr<Backend> backend) {
  if (!rows) return PagedKVCache::create(options, std::move(backend));
  return PagedKVCache::create(options, std::move(backend), rows->keys, rows->values);
}

}  // namespace

Result<PagedKVCache> PagedKVCache::from_cache(const TailOwnedKVCache& entry,
                                              const PagedKVCacheOptions& options,
                                              std::shared_ptr<Backend> backend) {
  return copy_of(entry.state(), options, std::move(backend));
}

Result<PagedKVCache> PagedKVCache::from_cache(const BlockOwnedKVCache& entry,
                                              const PagedKVCacheOptions& options,
                                              std::shared_ptr<Backend> backend) {
  return copy_of(entry.state(), options, std::move(backend));
}

Result<PagedKVCache> PagedKVCache::from_cache(PagedKVCache& entry,
                                              const PagedKVCacheOptions& options,
                                              std::shared_ptr<Backend> backend) {
  Result<PagedKVCache> cache = create(options, backend);
  if (!cache.ok()) return cache;
  if (!entry.empty() && cache->state_->is_low_bit() &&
      cache->state_->format_for(entry.state_->rows->shape()) == entry.state_->rows->format()) {
    // Encoding what was decoded could round once more.
    Result<KvCodes> codes = entry.state_->rows->codes(KvCodeLayout::rows);
    if (!codes.ok()) return codes.status();
    if (Status status = cache->state_->load_codes(*codes); !status.ok()) return status;
    return cache;
  }
  Result<std::optional<KvArrays>> rows = entry.state();
  if (!rows.ok()) return rows.status();
  return copy_of(*rows, options, std::move(backend));
}

Result<TailOwnedKVCache> TailOwnedKVCache::from_cache(PagedKVCache& entry, DetachMode mode,
                                                      std::optional<int64_t> step) {
  TailOwnedOptions options;
  options.mode = mode;
  options.step = step.value_or(options.step);
  Result<std::optional<KvArrays>> rows = entry.state();
  if (!rows.ok()) return rows.status();
  if (!rows->has_value()) return create(options);
  return create(options, (*rows)->keys, (*rows)->values);
}

Result<BlockOwnedKVCache> BlockOwnedKVCache::from_cache(PagedKVCache& entry, DetachMode mode,
                                                        int64_t block_size) {
  Result<std::optional<KvArrays>> rows = entry.state();
  if (!rows.ok()) return rows.status();
  Result<BlockOwnedKVCache> cache = create({block_size, mode});
  if (!cache.ok() || !rows->has_value()) return cache;
  if (Status status = cache->set_state(*rows); !status.ok()) return status;
  return cache;
}

PagedKVCache PagedKVCache::fork() const {
  auto other = std::make_unique<PagedState>();
  other->options = state_->options;
  other->backend = state_->backend;
  other->num_blocks = state_->num_blocks;
  other->planned_offset = state_->planned_offset;
  if (state_->rows) other->rows = state_->rows->fork();
  other->halves = state_->halves;
  other->route = state_->route;
  other->route_offset = state_->route_offset;
  other->bailout = state_->bailout;
  other->told = state_->told;
  if (state_->mirror) other->mirror = state_->mirror->fork();
  other->copies = state_->copies;
  other->counters = state_->counters;
  return PagedKVCache(std::move(other));
}

Status PagedKVCache::update_without_fetch(const ConstTensorView& keys,
                                          const ConstTensorView& values, PagedPhase phase) {
  const auto start = std::chrono::steady_clock::now();
  if (Status status = state_->append(keys, values); !status.ok()) return status;
  if (keys.dim(2) == 0) return {};
  ++state_->counters.updates;
  state_->counters.cache_write_time_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // A prompt begins a request: its first attention call chooses the route anew.
  if (phase == PagedPhase::prefill || (phase == PagedPhase::unknown && keys.dim(2) > 1)) {
    state_->route.reset();
  }
  return {};
}

Status PagedKVCache::prepare(const KvArrayShape& shape, int64_t position, int64_t num_rows) {
  if (num_rows < 0 || position < offset()) {
    return invalid_argument("cannot prepare " + num(num_rows) + " rows at position " +
                            num(position) + " of a cache of " + num(offset()) + " rows");
  }
  return state_->prepare(shape, position - offset(), num_rows);
}

Result<KvArrays> PagedKVCache::update_and_fetch(const ConstTensorView& keys,
                                                const ConstTensorView& values, PagedPhase phase) {
  if (Status status = update_without_fetch(keys, values, phase); !status.ok()) return status;
  if (!state_->rows) return copy_arrays(rows_of(keys, 0, 0), rows_of(values, 0, 0));
  return state_->gather();
}

const std::optional<PagedBailout>& PagedKVCache::last_bailout() const { return state_->bailout; }
int64_t PagedKVCache::block_size() const { return state_->options.block_size; }
int64_t PagedKVCache::num_blocks() const { return state_->num_blocks; }
int64_t PagedKVCache::offset() const { return state_->offset(); }
bool PagedKVCache::empty() const { return !state_->has_rows(); }
const PagedKVCacheOptions& PagedKVCache::options() const { return state_->options; }

int64_t PagedKVCache::nbytes() const {
  const int64_t mirror = state_->mirror ? state_->mirror->nbytes() : 0;
  return (state_->rows ? state_->rows->stats().nbytes : 0) + mirror;
}

int64_t PagedKVCache::resident_bytes() const {
  const int64_t mirror = state_->mirror ? state_->mirror->resident_bytes() : 0;
  return (state_->rows ? state_->rows->stats().resident_bytes : 0) + mirror;
}

bool PagedKVCache::is_low_bit() const { return state_->is_low_bit(); }

KvFormat PagedKVCache::format_of(const KvArrayShape& shape) const {
  return state_->format_for(shape);
}

std::optional<KvArrayShape> PagedKVCache::shape() const {
  if (!state_->rows) return std::nullopt;
  return state_->rows->shape();
}

std::vector<int32_t> PagedKVCache::block_table(int64_t batch_row) const {
  std::vector<int32_t> table;
  if (!state_->rows) return table;
  KVIK_CHECK(batch_row >= 0 && batch_row < state_->rows->shape().batch, "no such batch row");
  const std::vector<int32_t> pages = state_->rows->pages_of(batch_row);
  const int64_t blocks_per_page = state_->page_tokens() / block_size();
  for (int64_t block = 0; block < ceil_div(offset(), block_size()); ++block) {
    const int64_t page = pages[static_cast<size_t>(block / blocks_per_page)];
    table.push_back(static_cast<int32_t>(page * blocks_per_page + block % blocks_per_page));
  }
  return table;
}

int64_t PagedKVCache::trim(int64_t n) {
  const int64_t removed = std::clamp<int64_t>(n, 0, offset());
  if (removed == 0) return 0;
  if (state_->rows) {
    state_->truncate(offset() - removed);
  } else {
    state_->planned_offset -= removed;
  }
  return removed;
}

Result<std::optional<KvArrays>> PagedKVCache::state() {
  if (empty()) return std::optional<KvArrays>();
  if (state_->options.forbid_active_arrays && offset() >= state_->options.partition_threshold) {
    return unsupported("refusing to materialize active K/V arrays of " + num(offset()) +
                       " tokens; allow it or attend to the pages");
  }
  Result<KvArrays> arrays = state_->gather();
  if (!arrays.ok()) return arrays.status();
  return std::optional<KvArrays>(std::move(arrays).value());
}

Status PagedKVCache::set_state(const std::optional<KvArrays>& state) {
  if (state) return state_->load(state->keys, state->values, state->num_rows());
  state_->clear();
  return {};
}

std::vector<std::string> PagedKVCache::meta_state() const {
  return {num(block_size()), num(num_blocks()), num(offset())};
}

Status PagedKVCache::set_meta_state(std::span<const std::string> meta) {
  if (meta.empty()) return {};
  if (meta.size() != 3) {
    return invalid_argument("meta state has " + num(static_cast<int64_t>(meta.size())) +
                            " items; it needs block_size, num_blocks and offset");
  }
  Result<int64_t> block = parse_meta_number("block_size", meta[0]);
  if (!block.ok()) return block.status();
  Result<int64_t> blocks = parse_meta_number("num_blocks", meta[1]);
  if (!blocks.ok()) return blocks.status();
  Result<int64_t> rows = parse_meta_number("offset", meta[2]);
  if (!rows.ok()) return rows.status();
  if (Status status = check_geometry(*block, *blocks); !status.ok()) return status;
  const int64_t room = state_->rows ? capacity() : *block * *blocks;
  if (*rows < 0 || *rows > room) {
    return invalid_argument("offset " + num(*rows) + " exceeds page capacity of " + num(room) +
                            " tokens");
  }
  if (state_->rows) {
    if (*rows > offset()) {
      return invalid_argument("offset " + num(*rows) + " exceeds the " + num(offset()) +
                              " valid rows; restore the state first");
    }
    state_->truncate(*rows);
    return {};
  }
  state_->options.block_size = *block;
  state_->num_blocks = *blocks;
  state_->planned_offset = *rows;
  return {};
}

namespace {

// Replaces one half of a low-bit cache's rows; the other half keeps its codes, because encoding
// what was decoded could round once more.
Status replace_half(PagedKVCache& cache, PagedState& state, bool is_keys, const KvArrays& pair) {
  PagedKVCacheOptions options = state.options;
  options.num_blocks = state.num_blocks;
  Result<PagedKVCache> fresh = PagedKVCache::create(options, state.backend, pair.keys, pair.values);
  if (!fresh.ok()) return fresh.status();
  Result<std::optional<KvCodes>> codes = fresh->export_codes();
  if (!codes.ok()) return codes.status();
  const Result<KvCodes> old = state.rows->codes(KvCodeLayout::rows);
  if (!old.ok()) return old.status();
  KvCodes both = **codes;
  (is_keys ? both.values : both.keys) = is_keys ? old->values : old->keys;
  return cache.import_codes(both);
}

Status set_half(PagedKVCache& cache, PagedState& state, bool is_keys,
                const std::optional<ConstTensorView>& half) {
  if (!half) return cache.set_state(std::nullopt);
  Result<std::optional<KvArrays>> rows = cache.state();
  if (!rows.ok()) return rows.status();
  Result<std::optional<KvArrays>> pair = state.halves.offer(is_keys, *half, *rows);
  if (!pair.ok()) return pair.status();
  if (!pair->has_value()) return {};
  const bool keeps_other =
      rows->has_value() && (is_keys ? (*pair)->values.data == (*rows)->values.data
                                    : (*pair)->keys.data == (*rows)->keys.data);
  if (state.is_low_bit() && keeps_other) return replace_half(cache, state, is_keys, **pair);
  return cache.set_state(*pair);
}

}  // namespace

Status PagedKVCache::set_keys(const std::optional<ConstTensorView>& keys) {
  return set_half(*this, *state_, true, keys);
}

Status PagedKVCache::set_values(const std::optional<ConstTensorView>& values) {
  return set_half(*this, *state_, false, values);
}

Status PagedKVCache::reconfigure(const PagedKVCacheOptions& options) {
  PagedKVCacheOptions wanted = options;
  if (Status status = check_options(wanted); !status.ok()) return status;
  if (!state_->rows) {
    state_->options = wanted;
    state_->num_blocks = wanted.num_blocks;
    return {};
  }
  const int64_t tokens = wanted.block_size * wanted.num_blocks;
  wanted.block_size = block_size();
  PagedState plan;  // its rule for blocks, under the new options
  plan.options = wanted;
  plan.num_blocks = num_blocks();
  int64_t blocks = num_blocks();
  if (tokens > capacity()) {
    if (!wanted.dynamic) {
      return {StatusCode::out_of_pages, "the live cache has room for " + num(capacity()) +
                                            " tokens; room for " + num(tokens) +
                                            " needs growth, which is off (dynamic)"};
    }
    blocks = ceil_div(std::min(tokens, plan.limit_tokens()), block_size());
  }
  const PagedKVCacheOptions before = std::exchange(state_->options, wanted);
  if (state_->format_for(state_->rows->shape()) != state_->rows->format() ||
      blocks * block_size() > state_->rows->limit_tokens()) {
    const int64_t limit = std::max(plan.limit_tokens(), blocks * block_size());
    if (Status status = state_->move_to_format(limit); !status.ok()) {
      state_->options = before;
      return status;
    }
  }
  if (PagedState::mirror_dtype(before) != PagedState::mirror_dtype(wanted)) state_->mirror.reset();
  if (blocks > num_blocks()) ++state_->counters.grow_events;
  state_->num_blocks = blocks;
  return {};
}

Result<CausalMask> PagedKVCache::make_mask(int64_t num_queries, bool return_array,
                                           std::optional<int64_t> window) const {
  return make_causal_mask(num_queries, offset(), return_array, window);
}

Result<CausalMask> PagedKVCache::make_mask(int64_t query_len, int64_t key_len,
                                           MaskType type) const {
  return make_mask_array(query_len, key_len, type);
}

namespace {

// What the options ask for; the route of KV-Quant is that of the request.
void add_storage(const PagedKVCacheOptions& options, PagedStats& stats) {
  if (options.turboquant) {
    stats.turboquant = true;
    stats.turboquant_k_quant = turboquant_name(options.turboquant->k_quant);
    stats.turboquant_v_quant = turboquant_name(options.turboquant->v_quant);
  } else if (options.kv_quant && options.kv_quant->mode) {
    stats.kv_quant = true;
    stats.kv_quant_mode = kv_code_name(*options.kv_quant->mode);
    stats.kv_quant_route = stats.route;
    stats.kv_quant_route_offset = stats.route_offset;
  }
}

}  // namespace

PagedStats PagedKVCache::paged_stats() const {
  PagedStats stats = state_->counters;
  stats.mode = "vllm_metal_paged";
  stats.block_size = block_size();
  stats.num_blocks = num_blocks();
  stats.capacity = capacity();
  stats.offset = offset();
  stats.sliding_window = state_->options.sliding_window;
  stats.copies = state_->copies;
  stats.instruction_set = state_->backend->name();
  if (state_->route) {
    stats.route = paged_route_name(*state_->route, state_->is_low_bit());
    stats.route_offset = state_->route_offset;
  }
  add_storage(state_->options, stats);
  if (!state_->rows) return stats;
  stats.format = format_text(state_->rows->format());
  const CacheStats pool = state_->rows->stats();
  stats.batch = state_->rows->shape().batch;
  stats.allocated_blocks = stats.batch * ceil_div(offset(), block_size());
  stats.bytes = nbytes();
  stats.mirror_bytes = state_->mirror ? state_->mirror->nbytes() : 0;
  stats.shared_blocks = pool.shared_blocks;
  stats.copy_on_write_copies = pool.copy_on_write_copies;
  stats.committed_bytes = pool.committed_bytes;
  stats.resident_bytes = resident_bytes();
  return stats;
}

}  // namespace kvik
