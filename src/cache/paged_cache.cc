#include "kvik/cache/paged_cache.h"

#include <algorithm>
#include <string>

#include "cache/plan_state.h"
#include "kvik/core/check.h"
#include "kvik/core/checked_math.h"

namespace kvik {

using internal::CacheCore;
using internal::PlanItem;
using internal::PlanState;
using internal::SequenceState;

namespace {

std::string num(int64_t x) { return std::to_string(x); }

Status check_options(const PagedCacheOptions& options) {
  if (Status status = check(options.spec); !status.ok()) return status;
  if (options.block_size < kTileTokens || options.block_size % kTileTokens != 0) {
    return invalid_argument("block_size is " + num(options.block_size) +
                            "; it must be a positive multiple of 16");
  }
  if (options.max_blocks < 1 || options.num_blocks < 0 || options.num_blocks > options.max_blocks) {
    return invalid_argument("num_blocks " + num(options.num_blocks) + " and max_blocks " +
                            num(options.max_blocks) + " must satisfy 0 <= num <= max, max >= 1");
  }
  if (options.window && *options.window < 1) {
    return invalid_argument("window is " + num(*options.window) + "; it counts tokens, at least 1");
  }
  if (options.rollback_slack < 0) {
    return invalid_argument("rollback_slack is " + num(options.rollback_slack));
  }
  if (options.first_tokens && *options.first_tokens < 1) {
    return invalid_argument("first_tokens is " + num(*options.first_tokens) +
                            "; it counts tokens, at least 1");
  }
  if (options.exact_first != 0 || options.exact_recent != 0) {
    return unsupported("exact_first and exact_recent need a CacheSet");
  }
  return {};
}

// Two runs per layer, K then V, each reserved for max_blocks pages.
Result<std::vector<PageRun>> reserve_runs(const PagedCacheOptions& options, Backend& backend) {
  std::vector<PageRun> runs;
  for (int layer = 0; layer < options.spec.num_layers(); ++layer) {
    for (const int64_t token :
         {token_bytes_k(options.spec, layer), token_bytes_v(options.spec, layer)}) {
      const auto bytes = checked_product({token, options.block_size, options.max_blocks});
      if (!bytes) {
        return invalid_argument("max_blocks " + num(options.max_blocks) + " of " +
                                num(options.block_size) + " tokens exceed 2^63 bytes a layer");
      }
      Result<Buffer> buffer = backend.reserve(*bytes);
      if (!buffer.ok()) return buffer.status();
      runs.push_back({std::move(buffer).value(), token * options.block_size});
    }
  }
  return runs;
}

// Copies the page of the sequence's last block to `to`, for its own use. Rows after the length are
// copied along; nobody reads them.
void copy_last_page(CacheCore& core, const SequenceState& sequence, int to) {
  const BlockTable& table = sequence.tables[static_cast<size_t>(core.table_idx)];
  core.pool->copy_page(table.page(table.end_block() - 1), to);
  const int rows = sequence.num_cached - (table.end_block() - 1) * core.options.block_size;
  core.copied_rows +=
      int64_t{rows} * core.options.spec.num_kv_heads * core.options.spec.num_layers();
  ++core.copy_on_write_copies;
}

// Pages that a request needs, a copy of its last block included.
void count_pages(const CacheCore& core, PlanItem& item) {
  const SequenceState& sequence = *item.sequence;
  const BlockTable& table = sequence.tables[static_cast<size_t>(core.table_idx)];
  const int limit = core.options.first_tokens.value_or(INT32_MAX);
  item.begin = std::min(limit, sequence.num_cached);
  item.end = std::min(limit, sequence.num_cached + item.num_tokens);
  item.copies_last = item.begin < item.end && item.begin % core.options.block_size != 0 &&
                     table.must_copy(table.end_block() - 1, item.begin);
  item.num_pages = static_cast<int>(ceil_div(item.end, core.options.block_size)) -
                   table.end_block() + (item.copies_last ? 1 : 0);
}

// Appends the request's block table, lengths, slots and positions to the plan's arrays.
void lay_out(const CacheCore& core, const PlanItem& item, const PageRef* pages, PlanState& plan) {
  const SequenceState& sequence = *item.sequence;
  const BlockTable& table = sequence.tables[static_cast<size_t>(core.table_idx)];
  const int block_size = core.options.block_size;
  const std::span<const int32_t> held = table.page_ids();
  plan.page_ids.insert(plan.page_ids.end(), held.begin(), held.end() - (item.copies_last ? 1 : 0));
  for (int i = 0; i < item.num_pages; ++i) plan.page_ids.push_back(pages[i].page());
  const int32_t first_page = plan.page_indptr.back();
  plan.page_indptr.push_back(static_cast<int32_t>(plan.page_ids.size()));
  const int first = table.begin_block() * block_size;
  plan.first_pos.push_back(first);
  plan.kv_len.push_back(item.end - first);
  plan.rows->committed_len.push_back(std::max(0, item.begin - first));
  plan.rows->floor_pos.push_back(table.floor_block() * block_size);
  plan.seq_lens.push_back(sequence.num_cached + item.num_tokens);
  for (int position = item.begin; position < item.end; ++position) {
    const size_t block = static_cast<size_t>((position - first) / block_size);
    const int64_t page = plan.page_ids[static_cast<size_t>(first_page) + block];
    plan.slots.push_back(page * block_size + position % block_size);
    plan.positions.push_back(position);
  }
  plan.query_indptr.push_back(static_cast<int32_t>(plan.slots.size()));
}

std::string name_of(const SequenceState& sequence) {
  return "sequence " + std::to_string(sequence.id);
}

Status out_of_blocks(const CacheCore& core, int64_t num_pages) {
  return {StatusCode::out_of_pages,
          "the step needs " + num(num_pages) + " more blocks of " + num(core.options.block_size) +
              " tokens; " + num(core.pool->num_free()) + " of the limit of " +
              num(core.options.max_blocks) +
              " are free. Free a sequence or make the cache with a larger max_blocks"};
}

Status check_rows(const char* name, const ConstTensorView& t, int num_tokens, int num_kv_heads,
                  int head_dim) {
  if (t.device != Device::cpu) return unsupported(std::string(name) + " is not in CPU memory");
  if (t.rank != 3 || t.dim(0) != num_tokens || t.dim(1) != num_kv_heads || t.dim(2) != head_dim) {
    std::string shape;
    for (int d = 0; d < t.rank; ++d) shape += (d == 0 ? "" : ", ") + num(t.dim(d));
    return invalid_argument(std::string(name) + " has shape [" + shape + "]; the plan wants [" +
                            num(num_tokens) + ", " + num(num_kv_heads) + ", " + num(head_dim) +
                            "]");
  }
  const bool is_empty = num_tokens == 0 || head_dim == 0;
  if (!is_empty && t.data == nullptr) return invalid_argument(std::string(name) + " is null");
  if (head_dim > 1 && t.step(2) != 1) {
    return invalid_argument(std::string(name) + " has stride " + num(t.step(2)) +
                            " in its last dimension; it must be 1");
  }
  return {};
}

// Rows [first, first + count) of a [tokens, heads, dims] tensor.
ConstTensorView token_rows(const ConstTensorView& t, int64_t first, int64_t count) {
  ConstTensorView rows = t;
  rows.data = t.at(first, 0);
  rows.shape[0] = count;
  return rows;
}

// Stores the rows of the plan's positions; of each sequence's new tokens the first ones.
Status encode_rows(CacheCore& core, const PlanState& state, int layer, const ConstTensorView& k,
                   const ConstTensorView& v) {
  const MutableKvView view = core.layer_view(layer);
  const auto encode = [&](int64_t token, int64_t slot, int64_t count) -> Status {
    const auto at = static_cast<size_t>(slot);
    const auto size = static_cast<size_t>(count);
    const std::optional<int64_t> refused = core.backend->encode(
        view, token_rows(k, token, count), token_rows(v, token, count),
        std::span(state.slots).subspan(at, size), std::span(state.positions).subspan(at, size));
    if (!refused) return {};
    return invalid_argument(
        "token " + num(token + *refused) + " (position " +
        num(state.positions[at + static_cast<size_t>(*refused)]) +
        ") holds a value that the layer's format cannot store (infinity, NaN or too large)");
  };
  if (!core.options.first_tokens) return encode(0, 0, static_cast<int64_t>(state.slots.size()));
  int64_t token = 0;
  int64_t slot = 0;
  Status first;
  for (const PlanItem& item : state.items) {
    Status status = encode(token, slot, item.end - item.begin);
    if (first.ok()) first = std::move(status);
    token += item.num_tokens;
    slot += item.end - item.begin;
  }
  return first;
}

}  // namespace

MutableKvView CacheCore::layer_view(int layer) const {
  const KvSpec& spec = options.spec;
  const KvFormat format = spec.layers[static_cast<size_t>(layer)];
  const int64_t tiles = options.block_size / kTileTokens;
  MutableKvView view;
  view.k = pool->run_data(2 * layer);
  view.v = pool->run_data(2 * layer + 1);
  view.format = format;
  view.num_kv_heads = spec.num_kv_heads;
  view.head_dim_k = spec.head_dim_k;
  view.head_dim_v = spec.head_dim_v;
  view.block_size = options.block_size;
  view.num_pages = pool->max_pages();
  view.k_stride = {pool->page_bytes(2 * layer), tiles * tile_bytes_k(format.k, spec.head_dim_k)};
  view.v_stride = {pool->page_bytes(2 * layer + 1),
                   tiles * tile_bytes_v(format.v, spec.head_dim_v)};
  if (const auto& framed = framed_keys[static_cast<size_t>(layer)]; framed != nullptr) {
    view.key_transform = &framed->transform();
  } else if (is_rotated(format.k)) {
    view.key_transform = rotated_keys(spec.head_dim_k);
  }
  return view;
}

Result<PagedCache> PagedCache::create(const PagedCacheOptions& options,
                                      std::shared_ptr<Backend> backend) {
  if (backend == nullptr) return invalid_argument("a cache needs a back end");
  if (Status status = check_options(options); !status.ok()) return status;
  if (Status status = backend->supports(options.spec, {}); !status.ok()) return status;
  Result<std::vector<PageRun>> runs = reserve_runs(options, *backend);
  if (!runs.ok()) return runs.status();
  Result<std::shared_ptr<PagePool>> pool =
      PagePool::create(std::move(runs).value(), options.max_blocks);
  if (!pool.ok()) return pool.status();
  if (Status status = pool.value()->commit(options.num_blocks); !status.ok()) return status;
  auto core = std::make_shared<CacheCore>();
  core->options = options;
  core->backend = std::move(backend);
  core->pool = std::move(pool).value();
  core->framed_keys =
      internal::framed_keys(options.spec, int64_t{options.max_blocks} * options.block_size);
  core->owner = core.get();
  return PagedCache(std::move(core));
}

void PagedCache::join_set(int table_idx, const void* owner) {
  core_->table_idx = table_idx;
  core_->owner = owner;
}

Sequence PagedCache::new_sequence() {
  Sequence sequence;
  if (!check_alone().ok() || !has_room_for_sequence()) return sequence;
  sequence.state_ = std::make_shared<SequenceState>();
  sequence.state_->id = core_->next_id++;
  sequence.state_->tables.resize(1);
  sequence.state_->owner = core_->owner;
  core_->only = sequence.state_;
  return sequence;
}

bool PagedCache::has_room_for_sequence() const {
  return !core_->options.contiguous || core_->only.expired();
}

Status PagedCache::check_owned(const Sequence& sequence) const {
  if (sequence.state_ == nullptr) return invalid_argument("the sequence is empty (moved from?)");
  if (sequence.state_->owner != core_->owner) {
    return invalid_argument(name_of(*sequence.state_) + " belongs to another cache");
  }
  return {};
}

Status PagedCache::check_no_plan(const SequenceState& sequence) {
  if (!sequence.has_open_plan) return {};
  return invalid_argument(name_of(sequence) + " has an open plan; commit or drop it first");
}

Status PagedCache::check_alone() const {
  if (core_->owner == core_.get()) return {};
  return invalid_argument("this cache steps with the others of its set; call the CacheSet");
}

Status PagedCache::check_request(const AppendRequest& request) const {
  if (request.sequence == nullptr) return invalid_argument("a request names no sequence");
  if (Status status = check_owned(*request.sequence); !status.ok()) return status;
  const SequenceState& sequence = *request.sequence->state_;
  if (request.num_tokens < 0) {
    return invalid_argument(name_of(sequence) + ": cannot append " + num(request.num_tokens) +
                            " tokens");
  }
  if (int64_t{sequence.num_cached} + request.num_tokens > INT32_MAX) {
    return invalid_argument(name_of(sequence) + ": positions must stay below 2^31");
  }
  return {};
}

Result<AppendPlan> PagedCache::reserve(std::span<const AppendRequest> requests) {
  if (Status status = check_alone(); !status.ok()) return status;
  for (const AppendRequest& request : requests) {
    if (Status status = check_request(request); !status.ok()) return status;
    if (Status status = check_no_plan(*request.sequence->state_); !status.ok()) return status;
  }
  return reserve_step(requests);
}

Result<AppendPlan> PagedCache::reserve_step(std::span<const AppendRequest> requests) {
  AppendPlan plan;
  plan.core_ = core_;
  plan.state_ = core_->spare ? std::move(core_->spare) : std::make_unique<PlanState>();
  PlanState& state = *plan.state_;
  int64_t num_pages = 0;
  for (const AppendRequest& request : requests) {
    const auto& sequence = request.sequence->state_;
    for (const PlanItem& item : state.items) {
      if (item.sequence == sequence) {
        return invalid_argument(name_of(*sequence) + " is named twice in one step");
      }
    }
    PlanItem item{.sequence = sequence, .num_tokens = request.num_tokens};
    count_pages(*core_, item);
    num_pages += item.num_pages;
    state.items.push_back(std::move(item));
  }
  if (num_pages > core_->pool->num_free()) return out_of_blocks(*core_, num_pages);
  if (Status status = core_->pool->allocate(static_cast<int>(num_pages), state.pages);
      !status.ok()) {
    return status;
  }

  state.query_indptr.push_back(0);
  state.page_indptr.push_back(0);
  const PageRef* next = state.pages.data();
  for (PlanItem& item : state.items) {
    item.sequence->has_open_plan = true;
    if (item.copies_last) copy_last_page(*core_, *item.sequence, next->page());
    lay_out(*core_, item, next, state);
    next += item.num_pages;
  }
  state.open(core_->options.spec.num_layers());
  if (num_pages == 0 && !state.slots.empty()) core_->pool->commit_ahead();
  return plan;
}

void PagedCache::write(AppendPlan& plan, int layer, const ConstTensorView& k,
                       const ConstTensorView& v) {
  KVIK_CHECK(plan.core_ == core_ && plan.state_ != nullptr, "the plan is not of this cache");
  PlanState& state = *plan.state_;
  const KvSpec& spec = core_->options.spec;
  int num_tokens = 0;
  for (const PlanItem& item : state.items) num_tokens += item.num_tokens;
  Status error;
  if (layer < 0 || layer >= spec.num_layers()) {
    error = invalid_argument("the cache has " + num(spec.num_layers()) + " layers");
  }
  if (error.ok()) {
    error = check_rows("k", k, num_tokens, spec.num_kv_heads, spec.head_dim_k);
  }
  if (error.ok()) {
    error = check_rows("v", v, num_tokens, spec.num_kv_heads, spec.head_dim_v);
  }
  if (error.ok()) {
    error = encode_rows(*core_, state, layer, k, v);
    state.rows->written[static_cast<size_t>(layer)] = true;
    core_->encoded_rows += static_cast<int64_t>(state.slots.size()) * spec.num_kv_heads;
  }
  if (!error.ok() && state.error.ok()) {
    state.error = Status(error.code(), "write of layer " + num(layer) + ": " + error.message());
  }
}

KvView PagedCache::view(const AppendPlan& plan, int layer) const {
  KVIK_CHECK(plan.core_ == core_ && plan.state_ != nullptr, "the plan is not of this cache");
  KVIK_CHECK(layer >= 0 && layer < core_->options.spec.num_layers(), "no such layer");
  KvView view = core_->layer_view(layer);
  view.page_indptr = plan.state_->page_indptr;
  view.page_ids = plan.state_->page_ids;
  view.first_pos = plan.state_->first_pos;
  view.kv_len = plan.state_->kv_len;
  view.window = core_->options.window;
  view.step = StepRef(plan.state_->rows, layer);
  return view;
}

Status PagedCache::check_commit(const AppendPlan& plan) const {
  if (plan.state_ == nullptr || plan.core_ != core_) {
    return invalid_argument("commit needs an open plan of this cache");
  }
  const PlanState& state = *plan.state_;
  if (!state.error.ok()) return state.error;
  const std::vector<bool>& written = state.rows->written;
  for (size_t layer = 0; !state.slots.empty() && layer < written.size(); ++layer) {
    if (!written[layer]) {
      return invalid_argument("layer " + num(static_cast<int64_t>(layer)) +
                              " was not written in this step");
    }
  }
  return {};
}

void PagedCache::apply_commit(AppendPlan& plan) {
  PlanState& state = *plan.state_;
  PageRef* next = state.pages.data();
  const PagedCacheOptions& options = core_->options;
  for (PlanItem& item : state.items) {
    BlockTable& table = item.sequence->tables[static_cast<size_t>(core_->table_idx)];
    int taken = 0;
    if (item.copies_last) table.replace_last(table.end_block() - 1, std::move(next[taken++]));
    while (taken < item.num_pages) table.append(std::move(next[taken++]));
    next += item.num_pages;
    if (!options.window) continue;
    const int64_t oldest = int64_t{item.sequence->num_cached} + item.num_tokens - *options.window -
                           options.rollback_slack;
    if (oldest > 0) table.drop_before(static_cast<int>(oldest / options.block_size));
  }
}

Status PagedCache::commit(AppendPlan plan) {
  if (Status status = check_alone(); !status.ok()) return status;
  if (Status status = check_commit(plan); !status.ok()) return status;
  apply_commit(plan);
  for (PlanItem& item : plan.state_->items) item.sequence->num_cached += item.num_tokens;
  return {};
}

Status PagedCache::check_truncate(const Sequence& sequence, int num_tokens) const {
  if (Status status = check_owned(sequence); !status.ok()) return status;
  const SequenceState& state = *sequence.state_;
  if (Status status = check_no_plan(state); !status.ok()) return status;
  if (num_tokens < 0 || num_tokens > state.num_cached) {
    return invalid_argument(name_of(state) + " holds " + num(state.num_cached) +
                            " tokens; it cannot keep " + num(num_tokens));
  }
  const BlockTable& table = state.tables[static_cast<size_t>(core_->table_idx)];
  const int64_t first_held = int64_t{table.begin_block()} * core_->options.block_size;
  const int64_t floor = int64_t{table.floor_block()} * core_->options.block_size;
  if (num_tokens == 0 || num_tokens == state.num_cached || first_held == 0) return {};
  // The next token sits at position num_tokens and sees the window - 1 rows before it.
  const int64_t first_needed = std::max(floor, int64_t{num_tokens} + 1 - *core_->options.window);
  if (num_tokens <= floor || first_held > first_needed) {
    return unsupported(name_of(state) + " cannot go back to " + num(num_tokens) +
                       " tokens: rows below position " + num(first_held) +
                       " left the window and were given back (raise rollback_slack)");
  }
  return {};
}

void PagedCache::apply_truncate(Sequence& sequence, int num_tokens) {
  BlockTable& table = sequence.state_->tables[static_cast<size_t>(core_->table_idx)];
  if (num_tokens == 0) {
    table.clear();
    return;
  }
  table.drop_from(static_cast<int>(ceil_div(num_tokens, core_->options.block_size)));
}

Status PagedCache::truncate(Sequence& sequence, int num_tokens) {
  if (Status status = check_alone(); !status.ok()) return status;
  if (Status status = check_truncate(sequence, num_tokens); !status.ok()) return status;
  apply_truncate(sequence, num_tokens);
  sequence.state_->num_cached = num_tokens;
  return {};
}

Result<Sequence> PagedCache::fork(const Sequence& sequence) {
  if (Status status = check_alone(); !status.ok()) return status;
  return fork_tables(sequence, core_->next_id++);
}

Result<Sequence> PagedCache::fork_tables(const Sequence& sequence, uint64_t id) const {
  if (Status status = check_owned(sequence); !status.ok()) return status;
  if (core_->options.contiguous) {
    return unsupported("a contiguous cache holds one sequence; make it paged to fork");
  }
  SequenceState& state = *sequence.state_;
  if (Status status = check_no_plan(state); !status.ok()) return status;
  Sequence other;
  other.state_ = std::make_shared<SequenceState>();
  other.state_->id = id;
  other.state_->owner = state.owner;
  other.state_->tables.resize(state.tables.size());
  other.state_->num_cached = state.num_cached;
  for (size_t i = 0; i < state.tables.size(); ++i) {
    other.state_->tables[i] = state.tables[i].fork(state.num_cached);
  }
  return other;
}

const KvSpec& PagedCache::spec() const { return core_->options.spec; }
int PagedCache::block_size() const { return core_->options.block_size; }
std::optional<int> PagedCache::window() const { return core_->options.window; }

CacheStats PagedCache::stats() const {
  const PagePool& pool = *core_->pool;
  CacheStats stats;
  stats.backend = core_->backend->name();
  stats.max_blocks = pool.max_pages();
  stats.committed_blocks = pool.num_committed();
  stats.used_blocks = pool.num_used();
  stats.shared_blocks = pool.num_shared();
  stats.nbytes = stats.committed_blocks * pool.total_page_bytes();
  stats.committed_bytes = pool.committed_bytes();
  stats.resident_bytes = pool.resident_bytes();
  stats.encoded_rows = core_->encoded_rows;
  stats.copied_rows = core_->copied_rows;
  stats.copy_on_write_copies = core_->copy_on_write_copies;
  return stats;
}

}  // namespace kvik
