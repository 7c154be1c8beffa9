// Rows of one layer in a low-bit format, encoded one by one: what a cache that stores them must
// hold.
#pragma once

#include <algorithm>
#include <vector>

#include "kvik/cache/paged_cache.h"
#include "kvik/format/packed_code.h"
#include "kvik/format/row_codec.h"
#include "kvik/layer_cache/paged_kv_cache.h"
#include "support/layer_rows.h"

namespace kvik::test {

// Options under which each family of formats is stored, and the codes that they mean.
struct LowBit {
  PagedKVCacheOptions options;
  KvFormat format;
  std::string name() const {
    return std::string(kv_code_name(format.k)) + ":" + std::string(kv_code_name(format.v));
  }
};

inline LowBit kv_quant(KvCode mode, std::optional<DType> mirror = std::nullopt) {
  LowBit low_bit;
  low_bit.options.kv_quant = KvQuantConfig{mode, mirror};
  low_bit.format = {mode, mode};
  return low_bit;
}
inline LowBit turboquant(KvCode k, KvCode v) {
  LowBit low_bit;
  low_bit.options.turboquant = TurboQuantConfig{k, v};
  low_bit.format = {k, v};
  return low_bit;
}
inline LowBit pair_of(KvCode k, KvCode v) {
  LowBit low_bit;
  low_bit.options.format = KvFormat{k, v};
  low_bit.format = {k, v};
  return low_bit;
}

// Every packed code on each side that it stores.
inline std::vector<LowBit> every_low_bit() {
  using enum KvCode;
  return {kv_quant(q8),
          kv_quant(q6),
          kv_quant(q4),
          turboquant(tqk_q8_0, tqv_q3_0),
          turboquant(tqk_uint8, tqv_q2_0),
          turboquant(tqk_q5_0, tqv_q4_0),
          turboquant(tqk_q4_0, tqv_q5_0),
          turboquant(tqk_int2, tqv_q8_0),
          pair_of(tq8, tcq4),
          pair_of(tq4, tcq3),
          pair_of(tq3, tcq2),
          pair_of(tq2, tq3),
          pair_of(tcq4, tq2),
          pair_of(tcq3, tq8),
          pair_of(tcq2, tq4),
          pair_of(f16, tcq4),
          pair_of(q8, f32)};
}

// One row of `code`: its stored bytes, and the values that those stand for.
struct StoredRow {
  std::vector<std::byte> bytes;
  std::vector<float> values;
};
inline StoredRow stored_row(KvCode code, const std::byte* row, DType dtype, int64_t head_dim) {
  std::vector<float> values(static_cast<size_t>(head_dim));
  for (size_t d = 0; d < values.size(); ++d) {
    values[d] = load_float(dtype, row + int64_t(d) * dtype_bytes(dtype));
  }
  StoredRow stored;
  stored.bytes.resize(size_t(stored_row_bytes(code, int(head_dim))));
  if (is_packed(code)) {
    EXPECT_TRUE(encode_row(code, values, stored.bytes)) << kv_code_name(code);
    decode_row(code, stored.bytes, values);
  } else {
    const int64_t size = kv_code_bytes(code);
    for (size_t d = 0; d < values.size(); ++d) {
      store_float(dtype_of(code), stored.bytes.data() + int64_t(d) * size, values[d]);
      values[d] = load_float(dtype_of(code), stored.bytes.data() + int64_t(d) * size);
    }
  }
  stored.values = values;
  return stored;
}

// The codes of all rows as export_codes gives them, and the rows that they stand for in the given
// dtypes.
struct StoredRows {
  std::vector<std::byte> k, v;
  LayerRows decoded;
};
inline StoredRows stored_rows(const LayerRows& rows, KvFormat format, DType dtype_k,
                              DType dtype_v) {
  StoredRows stored;
  stored.decoded = rows;
  stored.decoded.shape.dtype_k = dtype_k;
  stored.decoded.shape.dtype_v = dtype_v;
  const auto side = [&](KvCode code, const ConstTensorView& from, DType to,
                        std::vector<std::byte>& codes, std::vector<std::byte>& elements) {
    elements.clear();
    const float most = to == DType::f16 ? 65504.0f : 3.38953139e38f;
    for (int64_t b = 0; b < from.dim(0); ++b) {
      for (int64_t h = 0; h < from.dim(1); ++h) {
        for (int64_t t = 0; t < from.dim(2); ++t) {
          const std::byte* row = from.at(b, h) + t * from.step(2) * dtype_bytes(from.dtype);
          StoredRow one = stored_row(code, row, from.dtype, from.dim(3));
          codes.insert(codes.end(), one.bytes.begin(), one.bytes.end());
          // An array of the dtype cannot hold more.
          if (is_packed(code)) {
            for (float& x : one.values) x = std::clamp(x, -most, most);
          }
          const std::vector<std::byte> bytes = cast(one.values, to);
          elements.insert(elements.end(), bytes.begin(), bytes.end());
        }
      }
    }
  };
  side(format.k, rows.keys(), dtype_k, stored.k, stored.decoded.k);
  side(format.v, rows.values(), dtype_v, stored.v, stored.decoded.v);
  return stored;
}
inline StoredRows stored_rows(const LayerRows& rows, KvFormat format) {
  return stored_rows(rows, format, rows.shape.dtype_k, rows.shape.dtype_v);
}

inline bool same_bytes(std::span<const std::byte> a, const std::vector<std::byte>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// Whether the cache holds exactly these rows, as codes and as what they stand for.
inline void expect_holds(PagedKVCache& cache, const LayerRows& rows, KvFormat format) {
  const StoredRows want = stored_rows(rows, format);
  ASSERT_EQ(cache.offset(), rows.num_rows);
  const KvCodes codes = **cache.export_codes();
  EXPECT_EQ(codes.format, format);
  EXPECT_TRUE(same_bytes(codes.keys, want.k));
  EXPECT_TRUE(same_bytes(codes.values, want.v));
  if (rows.num_rows == 0) return;
  EXPECT_TRUE(same_rows(*rows_of_state(cache.state()), want.decoded));
}

}  // namespace kvik::test
