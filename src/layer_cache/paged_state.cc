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

}  // namespace

int64_t PagedState::page_tokens() const {
  return std::lcm(options.block_size, int64_t{kTileTokens});
}

int64_t PagedState::limit_tokens() const {
  const int64_t capacity = num_blocks * options.block_size;
  if (!options.dynamic) return capacity;
  return std::max(capacity, options.context_window.value_or(options.max_tokens));
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
  Result<KvArrays> all = rows->gather();
  if (!all.ok()) return all.status();
  Result<std::unique_ptr<PageRows>> fresh =
      PageRows::create(rows->shape(), page_tokens(), limit, backend);
  if (!fresh.ok()) return fresh.status();
  if (all->num_rows() > 0) {
    if (Status status = (*fresh)->append(all->keys, all->values); !status.ok()) return status;
    ++copies;
  }
  rows = std::move(fresh).value();
  return {};
}

Status PagedState::append(const ConstTensorView& keys, const ConstTensorView& values) {
  Result<KvArrayShape> shape = shape_of(keys, values);
  if (!shape.ok()) return shape.status();
  if (rows && *shape != rows->shape()) {
    return invalid_argument("the cache holds " + shape_text(rows->shape()) + "; the new rows are " +
                            shape_text(*shape));
  }
  if (keys.dim(2) == 0) return {};
  if (!rows && planned_offset > 0) {
    return invalid_argument("a meta state plans " + num(planned_offset) +
                            " rows that are not here yet; set the state first");
  }
  const auto end = checked_sum({offset(), keys.dim(2)});
  if (!end || *end > INT32_MAX) return invalid_argument("positions must stay below 2^31");
  Result<int64_t> blocks = blocks_for(*end);
  if (!blocks.ok()) return blocks.status();
  if (!rows) {
    const int64_t limit = std::max(limit_tokens(), *blocks * options.block_size);
    Result<std::unique_ptr<PageRows>> made =
        PageRows::create(*shape, page_tokens(), limit, backend);
    if (!made.ok()) return made.status();
    if (Status status = (*made)->append(keys, values); !status.ok()) return status;
    rows = std::move(made).value();
  } else {
    Status status;
    if (*blocks * options.block_size > rows->limit_tokens()) {
      status = move_to_own_pool(std::max(limit_tokens(), *blocks * options.block_size));
      if (!status.ok()) return status;
    }
    status = rows->append(keys, values);
    if (status.code() == StatusCode::out_of_pages) {
      // Forks have used the pool up; the capacity of this cache is still a promise.
      status = move_to_own_pool(rows->limit_tokens());
      if (status.ok()) status = rows->append(keys, values);
    }
    if (!status.ok()) return status;
  }
  if (*blocks > num_blocks) ++counters.grow_events;
  num_blocks = *blocks;
  return {};
}

Status PagedState::load(const ConstTensorView& keys, const ConstTensorView& values,
                        int64_t num_rows) {
  Result<KvArrayShape> shape = shape_of(keys, values);
  if (!shape.ok()) return shape.status();
  if (num_rows < 0 || num_rows > keys.dim(2) || num_rows > INT32_MAX) {
    return invalid_argument("offset " + num(num_rows) + " does not fit the " + num(keys.dim(2)) +
                            " rows");
  }
  Result<int64_t> blocks = blocks_for(num_rows);
  if (!blocks.ok()) return blocks.status();
  std::unique_ptr<PageRows> fresh;
  if (num_rows > 0) {
    const int64_t limit = std::max(limit_tokens(), *blocks * options.block_size);
    Result<std::unique_ptr<PageRows>> made =
        PageRows::create(*shape, page_tokens(), limit, backend);
    if (!made.ok()) return made.status();
    fresh = std::move(made).value();
    if (Status status = fresh->append(rows_of(keys, 0, num_rows), rows_of(values, 0, num_rows));
        !status.ok()) {
      return status;
    }
    ++counters.updates;
  }
  clear();
  rows = std::move(fresh);
  if (*blocks > num_blocks) ++counters.grow_events;
  num_blocks = *blocks;
  return {};
}

void PagedState::clear() {
  rows.reset();
  planned_offset = 0;
  halves.clear();
  route.reset();
}

Result<KvArrays> PagedState::gather() {
  const auto start = std::chrono::steady_clock::now();
  ++counters.active_array_calls;
  Result<KvArrays> arrays = rows->gather();
  counters.active_array_time_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return arrays;
}

void PagedState::tell(const std::string& what) {
  if (fallback_told || !options.on_fallback) return;
  fallback_told = true;
  options.on_fallback(what);
}

}  // namespace kvik::internal
