// The decoded rows of a cache that stores others, kept beside them for attention over plain arrays.
#pragma once

#include <cstdint>
#include <memory>

#include "kvik/core/status.h"
#include "kvik/layer_cache/kv_arrays.h"
#include "layer_cache/page_rows.h"
#include "layer_cache/row_store.h"

namespace kvik::internal {

// Holds rows [0, num_rows()) and never more than the cache: whoever cuts the cache's rows cuts
// these. Growing moves nothing. Threads: as RowStore.
class DequantMirror {
 public:
  // `shape` with the mirror's dtypes. Requires: max_rows >= 1.
  DequantMirror(const KvArrayShape& shape, int64_t max_rows);

  int64_t num_rows() const { return store_->num_rows(); }
  const KvArrayShape& shape() const { return shape_; }
  // Decodes the rows that are new since the last call, and no others. Returns their number. Errors:
  // out_of_memory.
  Result<int64_t> extend(const PageRows& rows);
  // Forgets rows from num_rows on, if it has them.
  void truncate(int64_t num_rows);
  // All rows, valid as long as the owner is held. Requires: there are some.
  KvArrays rows() const { return store_->view(0, store_->num_rows()); }

  int64_t nbytes() const { return capacity_ * shape_.row_bytes(); }  // of the rows backed
  int64_t resident_bytes() const { return store_->resident_bytes(); }
  std::unique_ptr<DequantMirror> fork() const;

 private:
  KvArrayShape shape_;
  std::unique_ptr<RowStore> store_;
  int64_t capacity_ = 0;
};

}  // namespace kvik::internal
