// Pages of the paged one-layer cache as arrays, in and out.
#include <cstring>
#include <utility>

#include "kvik/core/checked_math.h"
#include "layer_cache/paged_state.h"

namespace kvik {
namespace {

std::string num(int64_t x) { return std::to_string(x); }

// Copies one row of all heads between [B, H, T, D] at (b, t) and pages [.., block_size, H, D] at
// `slot`, whose slots lie one after the other.
void copy_slot(const ConstTensorView& from, int64_t from_b, int64_t from_t, std::byte* pages,
               int64_t slot) {
  const int64_t bytes = from.dim(3) * dtype_bytes(from.dtype);
  std::byte* to = pages + slot * from.dim(1) * bytes;
  for (int64_t h = 0; h < from.dim(1); ++h, to += bytes) {
    const std::byte* row = from.at(from_b, h) + from_t * bytes;
    std::memcpy(to, row, static_cast<size_t>(bytes));
  }
}

Status check_pages(const char* name, const ConstTensorView& t, int64_t block_size) {
  if (t.device != Device::cpu) return unsupported(std::string(name) + " is not in CPU memory");
  if (t.rank != 4 || t.dim(1) != block_size || t.dim(0) < 0 || t.dim(2) < 1 || t.dim(3) < 0) {
    return invalid_argument(std::string(name) + " must be [num_blocks, " + num(block_size) +
                            ", H_kv, D]");
  }
  if (t.data == nullptr && t.dim(0) > 0 && t.dim(3) > 0) {
    return invalid_argument(std::string(name) + " is null");
  }
  return {};
}

// The rows of all batch rows, [B, H, T, D], out of pages of any strides.
void rows_from_pages(const ConstTensorView& pages, const std::vector<std::vector<int64_t>>& slots,
                     const TensorView& rows) {
  const int64_t size = dtype_bytes(pages.dtype);
  for (size_t b = 0; b < slots.size(); ++b) {
    for (size_t t = 0; t < slots[b].size(); ++t) {
      const std::byte* slot = pages.at(slots[b][t] / pages.dim(1), slots[b][t] % pages.dim(1));
      for (int64_t h = 0; h < pages.dim(2); ++h) {
        std::byte* to =
            rows.at(static_cast<int64_t>(b), h) + static_cast<int64_t>(t) * rows.step(2) * size;
        for (int64_t d = 0; d < pages.dim(3); ++d) {
          std::memcpy(to + d * size, slot + (h * pages.step(2) + d * pages.step(3)) * size,
                      static_cast<size_t>(size));
        }
      }
    }
  }
}

}  // namespace

Result<std::optional<KvPages>> PagedKVCache::export_pages() const {
  if (!state_->rows) return std::optional<KvPages>();
  Result<KvArrays> rows = state_->rows->gather();
  if (!rows.ok()) return rows.status();
  const KvArrayShape& shape = state_->rows->shape();
  // Pages seen as arrays: [batch * num_blocks, block_size, H, D] in place of [B, H, T, D].
  KvArrayShape layout = shape;
  layout.batch = shape.batch * num_blocks();
  layout.num_kv_heads = block_size();
  Result<WritableKvArrays> made = make_arrays(layout, shape.num_kv_heads);
  if (!made.ok()) return made.status();
  const int64_t slots = shape.batch * num_blocks() * block_size();
  const auto clear = [&](const TensorView& t) {
    const int64_t bytes = slots * shape.num_kv_heads * t.dim(3) * dtype_bytes(t.dtype);
    std::memset(t.data, 0, static_cast<size_t>(bytes));
  };
  clear(made->keys);
  clear(made->values);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t t = 0; t < offset(); ++t) {
      const int64_t slot = b * num_blocks() * block_size() + t;
      copy_slot(rows->keys, b, t, made->keys.data, slot);
      copy_slot(rows->values, b, t, made->values.data, slot);
    }
  }
  return std::optional<KvPages>(
      KvPages{made->arrays.keys, made->arrays.values, made->arrays.owner});
}

Status PagedKVCache::import_pages(const ConstTensorView& key_cache,
                                  const ConstTensorView& value_cache,
                                  std::span<const int32_t> block_table, int64_t offset) {
  if (Status status = check_pages("key_cache", key_cache, block_size()); !status.ok()) {
    return status;
  }
  if (Status status = check_pages("value_cache", value_cache, block_size()); !status.ok()) {
    return status;
  }
  if (key_cache.dim(0) != value_cache.dim(0) || key_cache.dim(2) != value_cache.dim(2)) {
    return invalid_argument("key_cache and value_cache differ in blocks or heads");
  }
  if (offset < 1 || offset > INT32_MAX) {
    return invalid_argument("offset is " + num(offset) + "; pages hold at least one token");
  }
  const auto blocks = static_cast<size_t>(ceil_div(offset, block_size()));
  if (block_table.empty() || block_table.size() % blocks != 0) {
    return invalid_argument("the block table has " + num(static_cast<int64_t>(block_table.size())) +
                            " entries; " + num(offset) + " tokens need " +
                            num(static_cast<int64_t>(blocks)) + " for each batch row");
  }
  std::vector<std::vector<int64_t>> slots;
  for (size_t first = 0; first < block_table.size(); first += blocks) {
    const std::span<const int32_t> table = block_table.subspan(first, blocks);
    for (const int32_t page : table) {
      if (page < 0 || page >= key_cache.dim(0)) {
        return invalid_argument("the block table names block " + num(page) + " of " +
                                num(key_cache.dim(0)));
      }
    }
    Result<std::vector<int64_t>> row = page_slots(block_size(), table, 0, offset);
    if (!row.ok()) return row.status();
    slots.push_back(std::move(row).value());
  }
  const KvArrayShape shape{static_cast<int64_t>(slots.size()),
                           key_cache.dim(2),
                           key_cache.dim(3),
                           value_cache.dim(3),
                           key_cache.dtype,
                           value_cache.dtype};
  Result<WritableKvArrays> rows = make_arrays(shape, offset);
  if (!rows.ok()) return rows.status();
  rows_from_pages(key_cache, slots, rows->keys);
  rows_from_pages(value_cache, slots, rows->values);
  return state_->load(rows->arrays.keys, rows->arrays.values, offset);
}

Result<std::optional<KvCodes>> PagedKVCache::export_codes(KvCodeLayout layout) const {
  if (!state_->rows) return std::optional<KvCodes>();
  Result<KvCodes> codes = state_->rows->codes(layout);
  if (!codes.ok()) return codes.status();
  return std::optional<KvCodes>(std::move(codes).value());
}

Status PagedKVCache::import_codes(const KvCodes& codes) { return state_->load_codes(codes); }

}  // namespace kvik
