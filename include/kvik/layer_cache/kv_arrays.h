// Keys and values of one layer as arrays, model side: [B, H_kv, T, D], axis 2 is time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/core/tensor_view.h"

namespace kvik {

// Rows that were read from a cache. The content never changes while `owner` is held, whatever the
// cache does later; the memory is released with the last copy of `owner`, on any thread.
struct KvArrays {
  ConstTensorView keys;               // [B, H_kv, T, head_dim_k]
  ConstTensorView values;             // [B, H_kv, T, head_dim_v]
  std::shared_ptr<const void> owner;  // null for borrowed arrays
  int64_t num_rows() const { return keys.dim(2); }
};

// What the rows of one layer look like, T left out. Fixed by a cache's first write.
struct KvArrayShape {
  int64_t batch = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim_k = 0;
  int64_t head_dim_v = 0;
  DType dtype_k = DType::f32;
  DType dtype_v = DType::f32;
  friend bool operator==(const KvArrayShape&, const KvArrayShape&) = default;

  // Of one time step over the batch and all heads, K and V.
  int64_t row_bytes() const {
    return batch * num_kv_heads *
           (head_dim_k * dtype_bytes(dtype_k) + head_dim_v * dtype_bytes(dtype_v));
  }
};

// The shape of a pair of arrays. Errors: invalid_argument for ranks other than 4, negative or
// differing batch, head or row counts, no batch or head, head dims above kMaxHeadDim, null data;
// unsupported for memory of another device.
KVIK_API Result<KvArrayShape> shape_of(const ConstTensorView& keys, const ConstTensorView& values);

// "[1, 8, T, 128] bf16, [1, 8, T, 128] bf16", for messages.
KVIK_API std::string shape_text(const KvArrayShape& shape);

// A row-major copy with memory of its own. Requires: shape_of(keys, values) is ok. Errors:
// out_of_memory.
KVIK_API Result<KvArrays> copy_arrays(const ConstTensorView& keys, const ConstTensorView& values);

// A row-major pair of num_rows rows for the caller to fill (the views are of the memory that
// `arrays.owner` holds). Content undefined. Errors: out_of_memory, invalid_argument for sizes
// beyond 2^63 bytes.
struct WritableKvArrays {
  KvArrays arrays;
  TensorView keys, values;
};
KVIK_API Result<WritableKvArrays> make_arrays(const KvArrayShape& shape, int64_t num_rows);

// Rows [begin, end) of a view of rank 4. Requires: the range lies in it.
KVIK_API ConstTensorView rows_of(const ConstTensorView& view, int64_t begin, int64_t end);

}  // namespace kvik
