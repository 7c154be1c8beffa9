#include "layer_cache/row_store.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "kvik/core/check.h"
#include "kvik/core/checked_math.h"
#include "kvik/core/striped_buffer.h"
#include "layer_cache/copy_rows.h"

namespace kvik::internal {

// The rows of all heads in two striped buffers, a stripe per (batch row, head), and who may write
// where. A lease on n rows says that someone other than the tail's owner can see rows [0, n).
class RowMemory {
 public:
  static Result<std::shared_ptr<RowMemory>> create(const KvArrayShape& shape, int64_t max_rows) {
    const auto stripes = checked_product({shape.batch, shape.num_kv_heads});
    const auto k_bytes = checked_product({max_rows, shape.head_dim_k, dtype_bytes(shape.dtype_k)});
    const auto v_bytes = checked_product({max_rows, shape.head_dim_v, dtype_bytes(shape.dtype_v)});
    if (!stripes || !k_bytes || !v_bytes) {
      return invalid_argument(std::to_string(max_rows) + " rows exceed 2^63 bytes");
    }
    auto memory = std::make_shared<RowMemory>();
    Result<StripedBuffer> k = StripedBuffer::reserve(*stripes, *k_bytes);
    if (!k.ok()) return k.status();
    Result<StripedBuffer> v = StripedBuffer::reserve(*stripes, *v_bytes);
    if (!v.ok()) return v.status();
    memory->shape_ = shape;
    memory->max_rows_ = max_rows;
    memory->k_ = std::move(k).value();
    memory->v_ = std::move(v).value();
    return memory;
  }

  const KvArrayShape& shape() const { return shape_; }
  int64_t max_rows() const { return max_rows_; }

  // The range of addresses is backed under the lock: two handles never grow it at once.
  Status commit(int64_t rows) {
    const std::lock_guard lock(mutex_);
    if (Status s = k_.commit(rows * shape_.head_dim_k * dtype_bytes(shape_.dtype_k)); !s.ok()) {
      return s;
    }
    return v_.commit(rows * shape_.head_dim_v * dtype_bytes(shape_.dtype_v));
  }

  // Makes `handle` the owner of the tail if it may write rows from `row` on.
  bool claim(const RowStore* handle, int64_t row) {
    const std::lock_guard lock(mutex_);
    if (owner_ != nullptr && owner_ != handle) return false;
    if (!leases_.empty() && leases_.rbegin()->first > row) return false;
    owner_ = handle;
    return true;
  }
  void give_up(const RowStore* handle) {
    const std::lock_guard lock(mutex_);
    if (owner_ == handle) owner_ = nullptr;
  }
  void add_lease(int64_t rows) {
    const std::lock_guard lock(mutex_);
    ++leases_[rows];
  }
  void drop_lease(int64_t rows) {
    const std::lock_guard lock(mutex_);
    const auto found = leases_.find(rows);
    KVIK_CHECK(found != leases_.end(), "a lease was dropped twice");
    if (--found->second == 0) leases_.erase(found);
  }

  TensorView keys(int64_t begin, int64_t end) const {
    return view(k_, shape_.head_dim_k, shape_.dtype_k, begin, end);
  }
  TensorView values(int64_t begin, int64_t end) const {
    return view(v_, shape_.head_dim_v, shape_.dtype_v, begin, end);
  }
  int64_t resident_bytes() const {
    const std::lock_guard lock(mutex_);
    return k_.resident_bytes() + v_.resident_bytes();
  }

 private:
  TensorView view(const StripedBuffer& buffer, int64_t head_dim, DType dtype, int64_t begin,
                  int64_t end) const {
    TensorView view(nullptr, dtype, {shape_.batch, shape_.num_kv_heads, end - begin, head_dim});
    const int64_t stripe = buffer.stripe_stride() / dtype_bytes(dtype);
    view.stride = {shape_.num_kv_heads * stripe, stripe, head_dim, 1};
    if (buffer.data() != nullptr) {
      view.data = buffer.data() + begin * head_dim * dtype_bytes(dtype);
    }
    return view;
  }

  KvArrayShape shape_;
  int64_t max_rows_ = 0;
  mutable std::mutex mutex_;
  StripedBuffer k_, v_;
  const RowStore* owner_ = nullptr;
  std::map<int64_t, int64_t> leases_;  // rows -> how many leases
};

namespace {

// What a view holds on to.
struct ViewLease {
  ViewLease(std::shared_ptr<RowMemory> m, int64_t r) : memory(std::move(m)), rows(r) {
    memory->add_lease(rows);
  }
  ViewLease(const ViewLease&) = delete;
  ViewLease& operator=(const ViewLease&) = delete;
  ~ViewLease() { memory->drop_lease(rows); }

  std::shared_ptr<RowMemory> memory;
  int64_t rows;
};

}  // namespace

RowStore::~RowStore() { leave(); }

void RowStore::leave() {
  if (memory_ == nullptr) return;
  memory_->give_up(this);
  if (lease_) memory_->drop_lease(*lease_);
  lease_.reset();
  memory_.reset();
}

const KvArrayShape& RowStore::shape() const { return memory_->shape(); }

int64_t RowStore::resident_bytes() const {
  return memory_ == nullptr ? 0 : memory_->resident_bytes();
}

Status RowStore::check_append(const ConstTensorView& keys, const ConstTensorView& values) const {
  Result<KvArrayShape> shape = shape_of(keys, values);
  if (!shape.ok()) return shape.status();
  if (memory_ == nullptr || *shape == memory_->shape()) return {};
  return invalid_argument("the cache holds " + shape_text(memory_->shape()) +
                          "; the new rows are " + shape_text(*shape));
}

Status RowStore::append(const ConstTensorView& keys, const ConstTensorView& values,
                        int64_t capacity) {
  const int64_t end = num_rows_ + keys.dim(2);
  if (memory_ == nullptr || capacity > memory_->max_rows() || !memory_->claim(this, num_rows_)) {
    Result<KvArrayShape> shape = shape_of(keys, values);
    if (!shape.ok()) return shape.status();
    if (Status status = move_to_own_memory(*shape, capacity); !status.ok()) return status;
  } else {
    if (Status status = memory_->commit(capacity); !status.ok()) return status;
    if (lease_) memory_->drop_lease(*lease_);
    lease_.reset();
  }
  copy_rows(keys, memory_->keys(num_rows_, end));
  copy_rows(values, memory_->values(num_rows_, end));
  num_rows_ = end;
  return {};
}

Status RowStore::move_to_own_memory(const KvArrayShape& shape, int64_t capacity) {
  // Past the bound the reservation doubles, so that a row is copied a bounded number of times.
  int64_t max_rows = max_rows_;
  if (capacity > max_rows) max_rows = std::max(capacity, std::min(max_rows, INT64_MAX / 2) * 2);
  Result<std::shared_ptr<RowMemory>> made = RowMemory::create(shape, max_rows);
  if (!made.ok()) return made.status();
  RowMemory& memory = **made;
  if (Status status = memory.commit(capacity); !status.ok()) return status;
  if (num_rows_ > 0) {
    copy_rows(memory_->keys(0, num_rows_), memory.keys(0, num_rows_));
    copy_rows(memory_->values(0, num_rows_), memory.values(0, num_rows_));
    ++num_copies_;
  }
  memory.claim(this, num_rows_);
  leave();
  memory_ = std::move(made).value();
  max_rows_ = max_rows;
  return {};
}

bool RowStore::back(int64_t capacity) {
  return memory_ != nullptr && capacity <= memory_->max_rows() && memory_->commit(capacity).ok();
}

void RowStore::truncate(int64_t num_rows) {
  num_rows_ = num_rows;
  if (lease_ && *lease_ != num_rows) {
    memory_->add_lease(num_rows);
    memory_->drop_lease(*lease_);
    lease_ = num_rows;
  }
}

KvArrays RowStore::view(int64_t begin, int64_t end) const {
  KVIK_CHECK(memory_ != nullptr && 0 <= begin && begin <= end && end <= num_rows_,
             "a view lies in the rows of its cache");
  return {memory_->keys(begin, end), memory_->values(begin, end),
          std::make_shared<const ViewLease>(memory_, end)};
}

std::unique_ptr<RowStore> RowStore::fork() const {
  auto other = std::make_unique<RowStore>(max_rows_);
  if (memory_ == nullptr) return other;
  memory_->add_lease(num_rows_);
  other->memory_ = memory_;
  other->num_rows_ = num_rows_;
  other->lease_ = num_rows_;
  return other;
}

}  // namespace kvik::internal
