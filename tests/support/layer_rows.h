// Rows of one layer as [B, H, S, D] arrays, made from seeds, and their bytes in C order.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "kvik/layer_cache/kv_arrays.h"
#include "support/random.h"

namespace kvik::test {

// Values as an array of `dtype`, rounded to nearest even.
inline std::vector<std::byte> cast(const std::vector<float>& values, DType dtype) {
  const auto size = static_cast<size_t>(dtype_bytes(dtype));
  std::vector<std::byte> bytes(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) store_float(dtype, bytes.data() + i * size, values[i]);
  return bytes;
}

inline float element(const std::byte* at, DType dtype) { return load_float(dtype, at); }

// S rows with memory of their own.
struct LayerRows {
  LayerRows() = default;
  LayerRows(const KvArrayShape& s, int64_t n, uint64_t k_seed, uint64_t v_seed)
      : shape(s), num_rows(n) {
    const int64_t rows = s.batch * s.num_kv_heads * n;
    k = cast(bell(k_seed, rows * s.head_dim_k), s.dtype_k);
    v = cast(bell(v_seed, rows * s.head_dim_v), s.dtype_v);
  }
  static LayerRows filled(const KvArrayShape& s, int64_t n, float value) {
    LayerRows rows(s, n, 1, 2);
    rows.k =
        cast(std::vector<float>(rows.k.size() / size_t(dtype_bytes(s.dtype_k)), value), s.dtype_k);
    rows.v =
        cast(std::vector<float>(rows.v.size() / size_t(dtype_bytes(s.dtype_v)), value), s.dtype_v);
    return rows;
  }

  ConstTensorView keys() const {
    return {k.data(), shape.dtype_k, {shape.batch, shape.num_kv_heads, num_rows, shape.head_dim_k}};
  }
  ConstTensorView values() const {
    return {v.data(), shape.dtype_v, {shape.batch, shape.num_kv_heads, num_rows, shape.head_dim_v}};
  }
  KvArrays arrays() const { return {keys(), values(), nullptr}; }

  KvArrayShape shape;
  int64_t num_rows = 0;
  std::vector<std::byte> k, v;
};

// The elements of a view of rank 4 in C order, whatever its strides.
inline std::vector<std::byte> bytes_of(const ConstTensorView& t) {
  const int64_t size = dtype_bytes(t.dtype);
  std::vector<std::byte> bytes;
  for (int64_t b = 0; b < t.dim(0); ++b) {
    for (int64_t h = 0; h < t.dim(1); ++h) {
      for (int64_t s = 0; s < t.dim(2); ++s) {
        for (int64_t d = 0; d < t.dim(3); ++d) {
          const std::byte* at = t.at(b, h) + (s * t.step(2) + d * t.step(3)) * size;
          bytes.insert(bytes.end(), at, at + size);
        }
      }
    }
  }
  return bytes;
}

// Joins arrays of equal shapes along time.
inline LayerRows join(const LayerRows& a, const LayerRows& b) {
  LayerRows both;
  both.shape = a.shape;
  both.num_rows = a.num_rows + b.num_rows;
  const auto weave = [&](const std::vector<std::byte>& x, const std::vector<std::byte>& y,
                         int64_t row_bytes) {
    std::vector<std::byte> out;
    for (int64_t i = 0; i < a.shape.batch * a.shape.num_kv_heads; ++i) {
      const int64_t nx = a.num_rows * row_bytes;
      const int64_t ny = b.num_rows * row_bytes;
      out.insert(out.end(), x.begin() + i * nx, x.begin() + (i + 1) * nx);
      out.insert(out.end(), y.begin() + i * ny, y.begin() + (i + 1) * ny);
    }
    return out;
  };
  both.k = weave(a.k, b.k, a.shape.head_dim_k * dtype_bytes(a.shape.dtype_k));
  both.v = weave(a.v, b.v, a.shape.head_dim_v * dtype_bytes(a.shape.dtype_v));
  return both;
}

// The first n rows.
inline LayerRows first_rows(const LayerRows& rows, int64_t n) {
  LayerRows cut = rows;
  cut.num_rows = n;
  cut.k = bytes_of(rows_of(rows.keys(), 0, n));
  cut.v = bytes_of(rows_of(rows.values(), 0, n));
  return cut;
}

// What a cache's state() holds, whichever form it has; an error reads as a failure.
inline std::optional<KvArrays> rows_of_state(const std::optional<KvArrays>& state) { return state; }
inline std::optional<KvArrays> rows_of_state(const Result<std::optional<KvArrays>>& state) {
  EXPECT_TRUE(state.ok()) << state.status().to_string();
  return state.ok() ? *state : std::nullopt;
}

inline bool same_rows(const KvArrays& arrays, const LayerRows& rows) {
  return arrays.num_rows() == rows.num_rows && bytes_of(arrays.keys) == rows.k &&
         bytes_of(arrays.values) == rows.v;
}

}  // namespace kvik::test
