#include "layer_cache/dequant_mirror.h"

#include <algorithm>
#include <utility>

#include "kvik/core/checked_math.h"

namespace kvik::internal {
namespace {

// Memory is backed for so many rows at a time, and as many are decoded before they are copied.
constexpr int64_t kStep = 256;

}  // namespace

DequantMirror::DequantMirror(const KvArrayShape& shape, int64_t max_rows)
    : shape_(shape), store_(std::make_unique<RowStore>(ceil_div(max_rows, kStep) * kStep)) {}

Result<int64_t> DequantMirror::extend(const PageRows& rows) {
  const int64_t before = num_rows();
  while (num_rows() < rows.num_rows()) {
    const int64_t first = num_rows();
    Result<WritableKvArrays> fresh = make_arrays(shape_, std::min(kStep, rows.num_rows() - first));
    if (!fresh.ok()) return fresh.status();
    if (Status s = rows.decode(first, fresh->keys, fresh->values); !s.ok()) return s;
    const int64_t capacity = std::max(capacity_, ceil_div(rows.num_rows(), kStep) * kStep);
    Status status = store_->append(fresh->arrays.keys, fresh->arrays.values, capacity);
    if (!status.ok()) return status;
    capacity_ = capacity;
  }
  return num_rows() - before;
}

void DequantMirror::truncate(int64_t num_rows) {
  if (num_rows < store_->num_rows()) store_->truncate(num_rows);
}

std::unique_ptr<DequantMirror> DequantMirror::fork() const {
  auto other = std::make_unique<DequantMirror>(shape_, 1);
  other->store_ = store_->fork();
  other->capacity_ = capacity_;
  return other;
}

}  // namespace kvik::internal
