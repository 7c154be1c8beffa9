#include "kvik/layer_cache/kv_arrays.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "kvik/core/checked_math.h"
#include "kvik/format/kv_format.h"
#include "layer_cache/copy_rows.h"

namespace kvik {
namespace {

std::string num(int64_t x) { return std::to_string(x); }

Status check_array(const char* name, const ConstTensorView& t) {
  if (t.device != Device::cpu) return unsupported(std::string(name) + " is not in CPU memory");
  if (t.rank != 4) {
    return invalid_argument(std::string(name) + " has " + num(t.rank) +
                            " dimensions; it needs [B, H_kv, T, D]");
  }
  bool has_elements = true;
  for (int d = 0; d < 4; ++d) {
    if (t.dim(d) < 0) return invalid_argument(std::string(name) + " has a negative dimension");
    has_elements = has_elements && t.dim(d) > 0;
  }
  if (t.dim(0) < 1 || t.dim(1) < 1) {
    return invalid_argument(std::string(name) + " needs at least one batch row and one head");
  }
  if (t.dim(3) > kMaxHeadDim) {
    return invalid_argument(std::string(name) + " has head_dim " + num(t.dim(3)) +
                            "; the largest is " + num(kMaxHeadDim));
  }
  if (has_elements && t.data == nullptr) return invalid_argument(std::string(name) + " is null");
  return {};
}

}  // namespace

Result<KvArrayShape> shape_of(const ConstTensorView& keys, const ConstTensorView& values) {
  if (Status status = check_array("keys", keys); !status.ok()) return status;
  if (Status status = check_array("values", values); !status.ok()) return status;
  for (int d = 0; d < 3; ++d) {
    if (keys.dim(d) != values.dim(d)) {
      return invalid_argument("keys and values differ in dimension " + num(d) + ": " +
                              num(keys.dim(d)) + " and " + num(values.dim(d)));
    }
  }
  return KvArrayShape{keys.dim(0),   keys.dim(1), keys.dim(3),
                      values.dim(3), keys.dtype,  values.dtype};
}

std::string shape_text(const KvArrayShape& shape) {
  const auto one = [&](int64_t head_dim, DType dtype) {
    return "[" + num(shape.batch) + ", " + num(shape.num_kv_heads) + ", T, " + num(head_dim) +
           "] " + std::string(dtype_name(dtype));
  };
  return one(shape.head_dim_k, shape.dtype_k) + " and " + one(shape.head_dim_v, shape.dtype_v);
}

Result<WritableKvArrays> make_arrays(const KvArrayShape& shape, int64_t num_rows) {
  const auto k_bytes = checked_product(
      {shape.batch, shape.num_kv_heads, num_rows, shape.head_dim_k, dtype_bytes(shape.dtype_k)});
  const auto v_bytes = checked_product(
      {shape.batch, shape.num_kv_heads, num_rows, shape.head_dim_v, dtype_bytes(shape.dtype_v)});
  const auto k_rounded = k_bytes ? checked_sum({*k_bytes, 63}) : std::nullopt;
  const auto bytes =
      k_rounded && v_bytes ? checked_sum({*k_rounded / 64 * 64, *v_bytes, 127}) : std::nullopt;
  if (!bytes) return invalid_argument(num(num_rows) + " rows exceed 2^63 bytes");
  // 64-byte lines, as the kernels like them.
  void* memory = std::aligned_alloc(64, static_cast<size_t>(*bytes / 64 * 64));
  if (memory == nullptr) {
    return Status(StatusCode::out_of_memory, "no memory for " + num(*bytes) + " bytes of rows");
  }
  WritableKvArrays result;
  result.arrays.owner = std::shared_ptr<void>(memory, [](void* p) { std::free(p); });
  auto* const data = static_cast<std::byte*>(memory);
  result.keys = TensorView(data, shape.dtype_k,
                           {shape.batch, shape.num_kv_heads, num_rows, shape.head_dim_k});
  result.values = TensorView(data + *k_rounded / 64 * 64, shape.dtype_v,
                             {shape.batch, shape.num_kv_heads, num_rows, shape.head_dim_v});
  result.arrays.keys = result.keys;
  result.arrays.values = result.values;
  return result;
}

Result<KvArrays> copy_arrays(const ConstTensorView& keys, const ConstTensorView& values) {
  Result<KvArrayShape> shape = shape_of(keys, values);
  if (!shape.ok()) return shape.status();
  Result<WritableKvArrays> copy = make_arrays(*shape, keys.dim(2));
  if (!copy.ok()) return copy.status();
  internal::copy_rows(keys, copy->keys);
  internal::copy_rows(values, copy->values);
  return std::move(copy->arrays);
}

ConstTensorView rows_of(const ConstTensorView& view, int64_t begin, int64_t end) {
  ConstTensorView rows = view;
  if (rows.data != nullptr) rows.data += begin * view.step(2) * dtype_bytes(view.dtype);
  rows.shape[2] = end - begin;
  return rows;
}

}  // namespace kvik
