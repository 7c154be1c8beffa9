#include "layer_cache/paged_state.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "kvik/core/checked_math.h"
#include "kvik/format/tile.h"

namespace kvik::internal {
namespace {

std::string num(int64_t x) { return std::to_string(x); }

// check_keys or check_values of the storage that the options ask for.
Status explain(const char* side, const Status& status) {
  if (status.ok()) return {};
  return {status.code(), "these " + std::string(side) + " cannot be stored so: " +
                             status.message() + "; or leave low-bit storage off"};
}

}  // namespace

std::string format_text(KvFormat format) {
  return std::string(kv_code_name(format.k)) + ":" + std::string(kv_code_name(format.v));
}

std::string turboquant_name(KvCode code) { return std::string(kv_code_name(code).substr(4)); }

std::optional<KvFormat> PagedState::low_bit_format(const PagedKVCacheOptions& options) {
  if (options.turboquant) return KvFormat{options.turboquant->k_quant, options.turboquant->v_quant};
  if (options.kv_quant && options.kv_quant->mode) {
    return KvFormat{*options.kv_quant->mode, *options.kv_quant->mode};
  }
  return options.format;
}

std::optional<DType> PagedState::mirror_dtype(const PagedKVCacheOptions& options) {
  if (options.turboquant) return options.turboquant->mirror_dtype;
  if (options.kv_quant && options.kv_quant->mode) return options.kv_quant->mirror_dtype;
  return std::nullopt;
}

KvFormat PagedState::format_for(const KvArrayShape& shape) const {
  return low_bit_format(options).value_or(
      KvFormat{kv_code_of(shape.dtype_k), kv_code_of(shape.dtype_v)});
}

Result<std::unique_ptr<PageRows>> PagedState::make_rows(const KvArrayShape& shape,
                                                        int64_t limit) const {
  const KvFormat format = format_for(shape);
  Status status = explain("keys", check_keys(format.k, static_cast<int>(shape.head_dim_k)));
  if (status.ok()) {
    status = explain("values", check_values(format.v, static_cast<int>(shape.head_dim_v)));
  }
  if (!status.ok()) return status;
  return PageRows::create(shape, format, page_tokens(), limit, backend);
}

int64_t PagedState::page_tokens() const {
  return std::lcm(options.block_size, int64_t{kTileTokens});
}

int64_t PagedState::limit_tokens() const {
  const int64_t capacity = num_blocks * options.block_size;
  if (!options.dynamic) return capacity;
  // Whole blocks: the last one that growth may add is reserved too.
  const int64_t most = options.context_window.value_or(options.max_tokens);
  return std::max(capacity, ceil_div(most, options.block_size) * options.block_size);
}

Result<int64_t> PagedState::blocks_for(int64_t num_tokens) const {
  const int64_t capacity = num_blocks * options.block_size;
  if (options.context_window && num_tokens > *options.context_window) {
    return Status(StatusCode::out_of_pages, "capacity exceeded: need " + num(num_tokens) +
                                                " tokens, the context window has " +
                                                num(*options.context_window));
  }
  if (num_tokens <= capacity) return num_blocks;
  if (!options.dynamic) {
    return Status(StatusCode::out_of_pages,
                  "capacity exceeded: need " + num(num_tokens) + " > have " + num(capacity) +
                      " tokens (" + num(num_blocks) + " blocks of " + num(options.block_size) +
                      "); make the cache dynamic or with more blocks");
  }
  const int64_t most = std::max(num_blocks, ceil_div(limit_tokens(), options.block_size));
  if (ceil_div(num_tokens, options.block_size) > most) {
    return Status(StatusCode::out_of_pages,
                  "capacity exceeded: need " + num(num_tokens) + " tokens, growth ends at " +
                      num(most * options.block_size) + "; raise max_tokens");
  }
  Result<int64_t> grown =
      grow_num_blocks(num_blocks, options.block_size, num_tokens, options.context_window);
  if (!grown.ok()) return grown.status();
  return std::min(*grown, most);
}

Status PagedState::move_to_own_pool(int64_t limit) {
  Result<std::unique_ptr<PageRows>> fresh =
      PageRows::create(rows->shape(), rows->format(), page_tokens(), limit, backend);
  if (!fresh.ok()) return fresh.status();
  if (rows->num_rows() > 0) {
    // As codes: encoding what was decoded could round once more.
    Result<KvCodes> all = rows->codes(KvCodeLayout::rows);
    if (!all.ok()) return all.status();
    if (Status status = (*fresh)->append_codes(*all); !status.ok()) return status;
    ++copies;
  }
  rows = std::move(fresh).value();
  return {};
}

Status PagedState::move_to_format(int64_t limit) {
  if (format_for(rows->shape()) == rows->format()) return move_to_own_pool(limit);
  Result<std::unique_ptr<PageRows>> fresh = make_rows(rows->shape(), limit);
  if (!fresh.ok()) return fresh.status();
  if (rows->num_rows() > 0) {
    Result<KvArrays> all = rows->gather();
    if (!all.ok()) return all.status();
    if (Status status = (*fresh)->append(all->keys, all->values); !status.ok()) return status;
    ++copies;
  }
  rows = std::move(fresh).value();
  mirror.reset();
  route.reset();
  return {};
}

Result<int64_t> PagedState::check_append(const KvArrayShape& shape, int64_t pending,
                                         int64_t num_rows) const {
  if (rows && shape != rows->shape()) {
    return invalid_argument("the cache holds " + shape_text(rows->shape()) + "; the new rows are " +
                            shape_text(shape));
  }
  if (num_rows == 0) return num_blocks;
  if (!rows && planned_offset > 0) {
    return invalid_argument("a meta state plans " + num(planned_offset) +
                            " rows that are not here yet; set the state first");
  }
  const auto end = checked_sum({offset(), pending, num_rows});
  if (!end || *end > INT32_MAX) return invalid_argument("positions must stay below 2^31");
  return blocks_for(*end);
}

Status PagedState::make_room(const KvArrayShape& shape, int64_t blocks) {
  const int64_t limit = std::max(limit_tokens(), blocks * options.block_size);
  if (!rows) {
    Result<std::unique_ptr<PageRows>> made = make_rows(shape, limit);
    if (!made.ok()) return made.status();
    rows = std::move(made).value();
    return {};
  }
  if (blocks * options.block_size <= rows->limit_tokens()) return {};
  return move_to_own_pool(limit);
}

Status PagedState::use_room(const KvArrayShape& shape, int64_t blocks,
                            const std::function<Status()>& use) {
  const bool is_first = rows == nullptr;
  if (Status status = make_room(shape, blocks); !status.ok()) return status;
  Status status = use();
  if (status.code() == StatusCode::out_of_pages && !is_first) {
    // Forks have used the pool up; the capacity of this cache is still a promise.
    status = move_to_own_pool(rows->limit_tokens());
    if (status.ok()) status = use();
  }
  if (!status.ok()) {
    if (is_first) rows.reset();
    return status;
  }
  if (blocks > num_blocks) ++counters.grow_events;
  num_blocks = blocks;
  return {};
}

Status PagedState::append(const ConstTensorView& keys, const ConstTensorView& values) {
  Result<KvArrayShape> shape = shape_of(keys, values);
  if (!shape.ok()) return shape.status();
  const Result<int64_t> blocks = check_append(*shape, 0, keys.dim(2));
  if (!blocks.ok()) return blocks.status();
  if (keys.dim(2) == 0) return {};
  return use_room(*shape, *blocks, [&] { return rows->append(keys, values); });
}

Status PagedState::prepare(const KvArrayShape& shape, int64_t pending, int64_t num_rows) {
  const Result<int64_t> blocks = check_append(shape, pending, num_rows);
  if (!blocks.ok()) return blocks.status();
  if (num_rows == 0) return {};
  const int64_t end = offset() + pending + num_rows;
  return use_room(shape, *blocks, [&] { return rows->hold(end); });
}

Status PagedState::load(const ConstTensorView& keys, const ConstTensorView& values,
                        int64_t num_rows) {
  Result<KvArrayShape> shape = shape_of(keys, values);
  if (!shape.ok()) return shape.status();
  if (num_rows < 0 || num_rows > keys.dim(2) || num_rows > INT32_MAX) {
    return invalid_argument("offset " + num(num_rows) + " does not fit the " + num(keys.dim(2)) +
                            " rows");
  }
  return replace(*shape, num_rows, [&](PageRows& fresh) {
    return fresh.append(rows_of(keys, 0, num_rows), rows_of(values, 0, num_rows));
  });
}

Status PagedState::load_codes(const KvCodes& codes) {
  const KvFormat format = format_for(codes.shape);
  if (codes.format != format) {
    return invalid_argument("the codes are " + format_text(codes.format) +
                            ", and the cache stores " + format_text(format) +
                            "; decode them, or make a cache of their format");
  }
  const Result<KvCodesBytes> bytes =
      kv_codes_bytes(codes.format, codes.shape, codes.num_rows, codes.layout);
  if (!bytes.ok()) return bytes.status();
  if (static_cast<int64_t>(codes.keys.size()) != bytes->keys ||
      static_cast<int64_t>(codes.values.size()) != bytes->values) {
    return invalid_argument("the codes have " + num(static_cast<int64_t>(codes.keys.size())) +
                            " and " + num(static_cast<int64_t>(codes.values.size())) +
                            " bytes; rows like these have " + num(bytes->keys) + " and " +
                            num(bytes->values));
  }
  return replace(codes.shape, codes.num_rows,
                 [&](PageRows& fresh) { return fresh.append_codes(codes); });
}

Status PagedState::replace(const KvArrayShape& shape, int64_t num_rows,
                           const std::function<Status(PageRows&)>& fill) {
  Result<int64_t> blocks = blocks_for(num_rows);
  if (!blocks.ok()) return blocks.status();
  std::unique_ptr<PageRows> fresh;
  if (num_rows > 0) {
    const int64_t limit = std::max(limit_tokens(), *blocks * options.block_size);
    Result<std::unique_ptr<PageRows>> made = make_rows(shape, limit);
    if (!made.ok()) return made.status();
    fresh = std::move(made).value();
    if (Status status = fill(*fresh); !status.ok()) return status;
    ++counters.updates;
  }
  clear();
  rows = std::move(fresh);
  if (*blocks > num_blocks) ++counters.grow_events;
  num_blocks = *blocks;
  return {};
}

void PagedState::truncate(int64_t num_rows) {
  rows->truncate(num_rows);
  if (mirror) mirror->truncate(num_rows);
}

void PagedState::clear() {
  rows.reset();
  planned_offset = 0;
  halves.clear();
  route.reset();
  mirror.reset();
}

Result<KvArrays> PagedState::gather() {
  const auto start = std::chrono::steady_clock::now();
  ++counters.active_array_calls;
  Result<KvArrays> arrays = rows->gather();
  counters.active_array_time_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return arrays;
}

Result<KvArrays> PagedState::mirrored() {
  const auto start = std::chrono::steady_clock::now();
  ++counters.kv_quant_dequant_calls;
  if (!mirror) {
    KvArrayShape shape = rows->shape();
    shape.dtype_k = mirror_dtype(options).value_or(shape.dtype_k);
    shape.dtype_v = mirror_dtype(options).value_or(shape.dtype_v);
    mirror = std::make_unique<DequantMirror>(shape, rows->limit_tokens());
    ++counters.kv_quant_dequant_memo_rebuilds;
  }
  const Result<int64_t> decoded = mirror->extend(*rows);
  if (!decoded.ok()) return decoded.status();
  if (*decoded == 0) ++counters.kv_quant_dequant_memo_hits;
  counters.kv_quant_dequant_tokens += *decoded;
  counters.kv_quant_dequant_time_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return mirror->rows();
}

void PagedState::tell(const std::string& reason, const std::string& what) {
  if (!options.on_fallback || !told.insert(reason).second) return;
  options.on_fallback(what);
}

}  // namespace kvik::internal
