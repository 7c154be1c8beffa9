#include "layer_cache/page_rows.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "kvik/core/check.h"
#include "kvik/core/checked_math.h"
#include "layer_cache/page_codes.h"

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

}  // namespace

PageRows::PageRows(std::shared_ptr<SharedPool> pool) : pool_(std::move(pool)) {}

PageRows::~PageRows() {
  const std::lock_guard lock(pool_->mutex);
  held_.reset();
  holders_.clear();
  sequences_.clear();
}

const KvArrayShape& PageRows::shape() const { return pool_->shape; }
int64_t PageRows::limit_tokens() const { return pool_->limit_tokens; }
int64_t PageRows::page_tokens() const { return pool_->cache.block_size(); }

KvFormat PageRows::format() const { return pool_->cache.spec().layers.front(); }

Result<std::unique_ptr<PageRows>> PageRows::create(const KvArrayShape& shape, KvFormat format,
                                                   int64_t page_tokens, int64_t limit_tokens,
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
  options.spec.layers = {format};
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

Status PageRows::step(int64_t num_rows, const std::function<void(AppendPlan&)>& write) {
  if (num_rows > INT32_MAX) return invalid_argument("positions must stay below 2^31");
  const std::lock_guard lock(pool_->mutex);
  std::vector<AppendRequest> requests;
  for (Sequence& sequence : sequences_) {
    requests.push_back({&sequence, static_cast<int>(num_rows)});
  }
  const bool held = held_.has_value();
  held_.reset();
  Result<AppendPlan> plan = pool_->cache.reserve(requests);
  if (!plan.ok()) return plan.status();
  write(*plan);
  Status status = pool_->cache.commit(std::move(plan).value());
  // Within the lock nobody else can have taken what is left of the held pages. Only where a fork
  // came in between, which shares the last page, one page more is needed and may be missing; then
  // appends find room as if nothing had been held.
  if (held && held_end_ > this->num_rows()) static_cast<void>(hold_pages(held_end_).ok());
  return status;
}

Status PageRows::hold_pages(int64_t end) {
  const BlockTable& table = sequences_.front().table();
  const int64_t more = ceil_div(end, page_tokens()) - table.end_block();
  // A last page that a fork sees too is copied by the step that writes into it.
  const bool may_copy =
      num_rows() % page_tokens() != 0 && table.must_copy(table.end_block() - 1, num_rows());
  const int64_t pages = std::max<int64_t>(0, more) + (may_copy ? 1 : 0);
  held_end_ = end;
  held_.reset();
  if (pages == 0) return {};
  std::vector<AppendRequest> requests;
  while (holders_.size() < sequences_.size()) holders_.push_back(pool_->cache.new_sequence());
  for (Sequence& holder : holders_) {
    requests.push_back({&holder, static_cast<int>(pages * page_tokens())});
  }
  Result<AppendPlan> plan = pool_->cache.reserve(requests);
  if (!plan.ok()) return plan.status();
  held_ = std::move(plan).value();
  return {};
}

Status PageRows::hold(int64_t end) {
  const std::lock_guard lock(pool_->mutex);
  const bool held = held_.has_value();
  const int64_t before = held_end_;
  Status status = hold_pages(end);
  if (!status.ok() && held) static_cast<void>(hold_pages(before).ok());
  return status;
}

Status PageRows::append(const ConstTensorView& keys, const ConstTensorView& values) {
  return step(keys.dim(2), [&](AppendPlan& plan) {
    std::vector<std::byte> k_scratch;
    std::vector<std::byte> v_scratch;
    pool_->cache.write(plan, 0, as_tokens(keys, k_scratch), as_tokens(values, v_scratch));
  });
}

Status PageRows::append_codes(const KvCodes& codes) {
  const Result<TokenCodes> tokens = token_codes(codes);
  if (!tokens.ok()) return tokens.status();
  return step(codes.num_rows,
              [&](AppendPlan& plan) { pool_->cache.write_codes(plan, 0, tokens->k, tokens->v); });
}

void PageRows::truncate(int64_t num_rows) {
  const std::lock_guard lock(pool_->mutex);
  held_.reset();
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
  if (Status status = decode(0, made->keys, made->values); !status.ok()) return status;
  return std::move(made->arrays);
}

Status PageRows::decode(int64_t first, const TensorView& keys, const TensorView& values) const {
  return read([&](const KvView& view) {
    decode_rows(view, first, keys, values);
    return Status();
  });
}

Result<KvCodes> PageRows::codes(KvCodeLayout layout) const {
  KvCodes codes{format(), shape(), num_rows(), layout, {}, {}, nullptr};
  const Result<KvCodesBytes> bytes =
      kv_codes_bytes(codes.format, codes.shape, codes.num_rows, layout);
  if (!bytes.ok()) return bytes.status();
  // No larger than the memory that holds the rows now.
  const auto size = static_cast<size_t>(bytes->keys + bytes->values);
  const std::shared_ptr<std::byte[]> memory(new (std::nothrow) std::byte[size]);
  if (memory == nullptr) {
    return Status(StatusCode::out_of_memory,
                  "no memory for " + std::to_string(size) + " bytes of codes");
  }
  const std::span<std::byte> all(memory.get(), size);
  const std::span<std::byte> keys = all.first(static_cast<size_t>(bytes->keys));
  const std::span<std::byte> values = all.subspan(keys.size());
  const Status status = read([&](const KvView& view) {
    read_codes(view, layout, codes.num_rows, keys, values);
    return Status();
  });
  if (!status.ok()) return status;
  codes.keys = keys;
  codes.values = values;
  codes.owner = memory;
  return codes;
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
