// Packed weight matrices: what is stored, how large it is, and its exact values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

class GgufFile;

// The GGML block formats that can be decoded and multiplied.
enum class WeightType : uint8_t {
  // plain values
  f32,
  f16,
  bf16,
  // blocks of 32
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  iq4_nl,
  // blocks of 256
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
};
inline constexpr int kNumWeightTypes = 14;

// "f32", "q4_1", ...
KVIK_API std::string_view weight_type_name(WeightType type);
// nullopt: a type number that GGUF may name but this library cannot compute with.
KVIK_API std::optional<WeightType> weight_type_from_ggml(uint32_t ggml_type);
// Values of one block: a row holds whole blocks.
KVIK_API int64_t weight_block_values(WeightType type);
// Bytes of a row of `cols` values; nullopt if they do not fill whole blocks or overflow.
KVIK_API std::optional<int64_t> weight_row_bytes(WeightType type, int64_t cols);

// A view of a row-major matrix of packed rows, without gaps between them. Owns nothing: the memory
// (often a mapped file) must outlive it. No alignment is needed. A value; cheap to copy.
class KVIK_API Weight {
 public:
  // No rows.
  Weight() = default;
  // Errors: invalid_argument when cols does not fill whole blocks, or `bytes` is not exactly the
  // size of rows × cols values.
  static Result<Weight> make(WeightType type, int64_t rows, int64_t cols,
                             std::span<const std::byte> bytes);

  WeightType type() const { return type_; }
  int64_t rows() const { return rows_; }  // outputs of a product
  int64_t cols() const { return cols_; }  // the summed dimension
  int64_t row_bytes() const { return row_bytes_; }
  int64_t num_bytes() const { return rows_ * row_bytes_; }
  const std::byte* data() const { return data_; }
  // Requires: 0 <= i < rows().
  const std::byte* row(int64_t i) const { return data_ + i * row_bytes_; }

 private:
  WeightType type_ = WeightType::f32;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t row_bytes_ = 0;
  const std::byte* data_ = nullptr;
};

// The tensor of that name as a matrix: cols = shape[0], rows = the product of the other dimensions.
// Errors: invalid_argument (no such tensor), unsupported (a type that cannot be computed with).
KVIK_API Result<Weight> find_weight(const GgufFile& file, std::string_view name);

// Row i decoded to cols() floats. Every value equals, bit for bit, what `gguf.quants.dequantize` of
// the Python package gguf 0.19.0 gives (NaN payloads excepted).
// Requires: 0 <= i < rows(), room for cols() floats.
KVIK_API void decode_row(const Weight& weight, int64_t i, float* out) noexcept;

// corrupt, naming `name` and the row, if a value of the matrix is infinite or NaN. Looks at the
// scales alone where a format has them. Reads all of the memory once; call it from several threads
// for several weights.
KVIK_API Status check_finite(const Weight& weight, std::string_view name);

}  // namespace kvik
