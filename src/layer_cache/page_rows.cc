#include "layer_cache/page_rows.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kvik/core/check.h"
#include "kvik/core/checked_math.h"
#include "kvik/format/plain_rows.h"

namespace kvik::internal {

// What forks share.
struct SharedPool {
  SharedPool(PagedCache c, const KvArrayShape& s, int64_t limit)
      : cache(std::move(c)), shape(s), limit_tokens(limit) {}

  std::mutex mutex;  // of the cache and of every sequence in it
  PagedCache cache;
  KvArrayShape shape;
  int64_t limit_tokens;
};

namespace {

// Address space is cheap: that many forks may each fill their capacity before one of them must move
// to a pool of its own.
constexpr int64_t kForksInPlace = 4;

// [B, H, S, D] as the [B * S, H, D] that a cache takes: a view where strides allow it, else a copy
// in `scratch`.
ConstTensorView as_tokens(const ConstTensorView& t, std::vector<std::byte>& scratch) {
  const int64_t batch = t.dim(0);
  const int64_t rows = t.dim(2);
  const bool unit = t.step(3) == 1 || t.dim(3) <= 1;
  if (unit && (batch == 1 || rows == 1 || t.step(0) == rows * t.step(2))) {
    ConstTensorView tokens(t.data, t.dtype, {batch * rows, t.dim(1), t.dim(3)});
    tokens.stride = {rows == 1 ? t.step(0) : t.step(2), t.step(1), 1};
    return tokens;
  }
  const int64_t size = dtype_bytes(t.dtype);
  scratch.resize(static_cast<size_t>(batch * rows * t.dim(1) * t.dim(3) * size));
  std::byte* to = scratch.data();
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t s = 0; s < rows; ++s) {
      for (int64_t h = 0; h < t.dim(1); ++h) {
        const std::byte* from = t.at(b, h) + s * t.step(2) * size;
        for (int64_t d = 0; d < t.dim(3); ++d, to += size) {
          std::memcpy(to, from + d * t.step(3) * size, static_cast<size_t>(size));
        }
      }
    }
  }
  return {scratch.data(), t.dtype, {batch * rows, t.dim(1), t.dim(3)}};
}

// Copies the rows of one sequence and head out of its tiles.
void gather_head(const KvView& view, std::span<const int32_t> pages, int64_t num_rows, int head,
                 std::byte* keys, std::byte* values) {
  const int64_t k_bytes = view.head_dim_k * kv_code_bytes(view.format.k);
  const int64_t v_bytes = view.head_dim_v * kv_code_bytes(view.format.v);
  for (int64_t row = 0; row < num_rows; row += kTileTokens) {
    const int64_t page = pages[static_cast<size_t>(row / view.block_size)];
    const int64_t tile = row % view.block_size / kTileTokens;
    const int count = static_cast<int>(std::min<int64_t>(kTileTokens, num_rows - row));
    if (k_bytes > 0) {
      unpack_k_tile(view.format.k, k_tile(view, page, tile, head), count, view.head_dim_k,
                    keys + row * k_bytes, k_bytes);
    }
    if (v_bytes > 0) {
      unpack_v_tile(view.format.v, v_tile(view, page, tile, head), count, view.head_dim_v,
                    values + row * v_bytes, v_bytes);
    }
  }
}

}  // namespace

PageRows::PageRows(std::shared_ptr<SharedPool> pool) : pool_(std::move(pool)) {}

PageRows::~PageRows() {
  const std::lock_guard lock(pool_->mutex);
  sequences_.clear();
}

const KvArrayShape& PageRows::shape() const { return pool_->shape; }
int64_t PageRows::limit_tokens() const { return pool_->limit_tokens; }
int64_t PageRows::page_tokens() const { return pool_->cache.block_size(); }

Result<std::unique_ptr<PageRows>> PageRows::create(const KvArrayShape& shape, int64_t page_tokens,
                                                   int64_t limit_tokens,
                                                   const std::shared_ptr<Backend>& backend) {
  const auto pages =
      checked_product({shape.batch, ceil_div(limit_tokens, page_tokens), kForksInPlace});
  if (!pages || *pages > INT32_MAX || page_tokens > INT32_MAX || shape.num_kv_heads > INT32_MAX) {
    return invalid_argument("room for " + std::to_string(limit_tokens) + " tokens of " +
                            std::to_string(shape.batch) +
                            " batch rows exceeds 2^31 pages; lower num_blocks or max_tokens");
  }
  PagedCacheOptions options;
  options.spec.num_kv_heads = static_cast<int>(shape.num_kv_heads);
  options.spec.head_dim_k = static_cast<int>(shape.head_dim_k);
  options.spec.head_dim_v = static_cast<int>(shape.head_dim_v);
  options.spec.layers = {{kv_code_of(shape.dtype_k), kv_code_of(shape.dtype_v)}};
  options.block_size = static_cast<int>(page_tokens);
  options.max_blocks = static_cast<int>(std::max<int64_t>(1, *pages));
  Result<PagedCache> cache = PagedCache::create(options, backend);
  if (!cache.ok()) return cache.status();
  std::unique_ptr<PageRows> rows(
      new PageRows(std::make_shared<SharedPool>(std::move(cache).value(), shape, limit_tokens)));
  for (int64_t b = 0; b < shape.batch; ++b) {
    rows->sequences_.push_back(rows->pool_->cache.new_sequence());
  }
  return rows;
}

Status PageRows::append(const ConstTensorView& keys, const ConstTensorView& values) {
  if (keys.dim(2) > INT32_MAX) return invalid_argument("positions must stay below 2^31");
  const std::lock_guard lock(pool_->mutex);
  PagedCache& cache = pool_->cache;
  std::vector<AppendRequest> requests;
  for (Sequence& sequence : sequences_) {
    requests.push_back({&sequence, static_cast<int>(keys.dim(2))});
  }
  Result<AppendPlan> plan = cache.reserve(requests);
  if (!plan.ok()) return plan.status();
  std::vector<std::byte> k_scratch;
  std::vector<std::byte> v_scratch;
  cache.write(*plan, 0, as_tokens(keys, k_scratch), as_tokens(values, v_scratch));
  return cache.commit(std::move(plan).value());
}

void PageRows::truncate(int64_t num_rows) {
  const std::lock_guard lock(pool_->mutex);
  for (Sequence& sequence : sequences_) {
    const Status status = pool_->cache.truncate(sequence, static_cast<int>(num_rows));
    KVIK_CHECK(status.ok(), "a sequence without a window can always be cut");
  }
}

std::unique_ptr<PageRows> PageRows::fork() const {
  std::unique_ptr<PageRows> other(new PageRows(pool_));
  const std::lock_guard lock(pool_->mutex);
  for (const Sequence& sequence : sequences_) {
    Result<Sequence> copy = pool_->cache.fork(sequence);
    KVIK_CHECK(copy.ok(), "a sequence without an open plan can always be forked");
    other->sequences_.push_back(std::move(copy).value());
  }
  return other;
}

Status PageRows::read(const std::function<Status(const KvView&)>& read) const {
  const std::lock_guard lock(pool_->mutex);
  std::vector<AppendRequest> requests;
  for (Sequence& sequence : sequences_) requests.push_back({&sequence, 0});
  Result<AppendPlan> plan = pool_->cache.reserve(requests);
  if (!plan.ok()) return plan.status();
  return read(pool_->cache.view(*plan, 0));
}

Result<KvArrays> PageRows::gather() const {
  Result<WritableKvArrays> made = make_arrays(shape(), num_rows());
  if (!made.ok()) return made.status();
  const Status status = read([&](const KvView& view) {
    for (size_t b = 0; b < sequences_.size(); ++b) {
      const auto pages = view.page_ids.subspan(static_cast<size_t>(view.page_indptr[b]));
      for (int head = 0; head < view.num_kv_heads; ++head) {
        const auto row = static_cast<int64_t>(b);
        gather_head(view, pages, num_rows(), head, made->keys.at(row, head),
                    made->values.at(row, head));
      }
    }
    return Status();
  });
  if (!status.ok()) return status;
  return std::move(made->arrays);
}

std::vector<int32_t> PageRows::pages_of(int64_t batch_row) const {
  const std::lock_guard lock(pool_->mutex);
  const auto ids = sequences_[static_cast<size_t>(batch_row)].table().page_ids();
  return {ids.begin(), ids.end()};
}

CacheStats PageRows::stats() const {
  const std::lock_guard lock(pool_->mutex);
  return pool_->cache.stats();
}

}  // namespace kvik::internal
