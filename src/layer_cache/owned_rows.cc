#include "layer_cache/owned_rows.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include "kvik/core/checked_math.h"

namespace kvik::internal {

int64_t OwnedRows::nbytes() const {
  return has_memory() ? capacity() * store_->shape().row_bytes() : 0;
}

Status OwnedRows::append(const ConstTensorView& keys, const ConstTensorView& values,
                         int64_t num_pieces) {
  if (Status status = store_->check_append(keys, values); !status.ok()) return status;
  const int64_t num_new = keys.dim(2);
  if (num_new == 0) return {};
  const auto start = std::chrono::steady_clock::now();
  const auto end = checked_sum({offset(), num_new, unit_});
  if (!end) return invalid_argument("the cache cannot hold 2^63 rows");
  const int64_t capacity = std::max(capacity_, round_up(offset() + num_new, unit_));
  if (Status s = store_->append(keys, values, capacity); !s.ok()) return s;
  capacity_ = capacity;
  counters_.updates += num_pieces;
  counters_.arrays += 2 * num_pieces;
  counters_.bytes += num_new * store_->shape().row_bytes();
  counters_.time_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {};
}

Result<KvArrays> OwnedRows::fetch(const ConstTensorView& like_keys,
                                  const ConstTensorView& like_values) const {
  if (has_memory()) return view(0, offset());
  return copy_arrays(rows_of(like_keys, 0, 0), rows_of(like_values, 0, 0));
}

std::optional<KvArrays> OwnedRows::state() const {
  if (!has_memory()) return std::nullopt;
  return view(0, offset());
}

Status OwnedRows::replace(const ConstTensorView& keys, const ConstTensorView& values,
                          int64_t num_rows) {
  // The arrays may be views of the rows that are replaced: those go last.
  auto fresh = std::make_unique<RowStore>(max_rows_);
  if (Status status = fresh->check_append(keys, values); !status.ok()) return status;
  if (num_rows > 0) {
    const auto most = checked_sum({num_rows, unit_});
    if (!most) return invalid_argument("the cache cannot hold 2^63 rows");
    if (Status status = fresh->append(rows_of(keys, 0, num_rows), rows_of(values, 0, num_rows),
                                      round_up(num_rows, unit_));
        !status.ok()) {
      return status;
    }
  }
  clear();
  store_ = std::move(fresh);
  capacity_ = round_up(num_rows, unit_);
  return {};
}

void OwnedRows::clear() {
  past_copies_ += store_->num_copies();
  store_ = std::make_unique<RowStore>(max_rows_);
  capacity_ = 0;
  halves_.clear();
}

int64_t OwnedRows::trim(int64_t n) {
  const int64_t removed = std::clamp<int64_t>(n, 0, offset());
  if (removed > 0) store_->truncate(offset() - removed);
  return removed;
}

Status OwnedRows::set_half(bool is_keys, const std::optional<ConstTensorView>& half) {
  if (!half) {
    clear();
    return {};
  }
  Result<std::optional<KvArrays>> pair = halves_.offer(is_keys, *half, state());
  if (!pair.ok()) return pair.status();
  if (!pair->has_value()) return {};
  return replace((*pair)->keys, (*pair)->values, (*pair)->num_rows());
}

std::unique_ptr<OwnedRows> OwnedRows::fork() const {
  std::unique_ptr<OwnedRows> other = share(unit_, max_rows_);
  other->counters_ = counters_;
  other->past_copies_ = past_copies_ + store_->num_copies();
  other->halves_ = halves_;
  return other;
}

std::unique_ptr<OwnedRows> OwnedRows::share(int64_t unit, int64_t max_rows) const {
  auto other = std::make_unique<OwnedRows>(unit, max_rows);
  other->store_ = store_->fork();
  // Whatever the unit, the capacity is what is backed.
  const int64_t wanted = round_up(offset(), unit);
  other->capacity_ = wanted > capacity_ && other->store_->back(wanted) ? wanted : capacity_;
  return other;
}

TailOwnerStats OwnedRows::stats() const {
  TailOwnerStats stats = counters_;
  stats.copies = past_copies_ + store_->num_copies();
  stats.nbytes = nbytes();
  stats.resident_bytes = resident_bytes();
  return stats;
}

Status OwnedRows::restore(int64_t unit, int64_t rows) {
  if (rows < 0 || rows > offset()) {
    return invalid_argument("offset " + std::to_string(rows) + " does not fit the " +
                            std::to_string(offset()) + " valid rows; restore the state first");
  }
  unit_ = unit;
  store_->truncate(rows);
  return {};
}

Result<OwnedMeta> parse_owned_meta(const char* unit_name, std::span<const std::string> meta,
                                   DetachMode mode) {
  if (meta.size() != 2 && meta.size() != 3) {
    return invalid_argument("meta state has " + std::to_string(meta.size()) + " items; it needs " +
                            unit_name + ", offset and optionally the mode");
  }
  const Result<int64_t> unit = parse_meta_number(unit_name, meta[0]);
  if (!unit.ok()) return unit.status();
  const Result<int64_t> offset = parse_meta_number("offset", meta[1]);
  if (!offset.ok()) return offset.status();
  if (meta.size() == 2) return OwnedMeta{*unit, *offset, mode};
  const Result<DetachMode> named = parse_detach_mode(meta[2]);
  if (!named.ok()) return named.status();
  return OwnedMeta{*unit, *offset, *named};
}

Result<int64_t> parse_meta_number(const char* name, const std::string& text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && !text.empty()) return value;
  return invalid_argument(std::string(name) + " \"" + text + "\" is no whole number");
}

}  // namespace kvik::internal
