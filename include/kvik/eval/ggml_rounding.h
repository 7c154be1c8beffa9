// What llama.cpp's block formats lose of a key or value: rows are rounded as those formats store
// them and given back as floats. For comparison only; nothing is stored in these formats.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/model/model_runner.h"

namespace kvik {

// Blocks of 32 elements along the head dimension, scales in f16:
//   q8_0  d = max|x| / 127, codes round(x / d), halves away from zero
//   q5_1  d = (max - min) / 31, codes floor((x - min) / d + 1/2); min in f16 beside d
//   q4_0  d = m / -8, m the element largest in magnitude with its sign, codes
//         min(15, floor(x / d + 8.5)), value (code - 8) * d
// Codes are made with d in f32, values with d in f16.
enum class GgmlBlock : uint8_t { q8_0, q5_1, q4_0 };

inline constexpr int kGgmlBlockElements = 32;

struct GgmlFormat {
  GgmlBlock block = GgmlBlock::q8_0;
  // Rounded after an orthonormal Walsh-Hadamard transform (keys: over the largest power of two that
  // divides the head dimension; values: over 64 elements), and turned back after.
  bool rotated = false;
  friend bool operator==(const GgmlFormat&, const GgmlFormat&) = default;
};

// "ggml-q8_0", "ggml-q5_1" or "ggml-q4_0", rotated with "-rot" at the end; nullopt for others.
KVIK_API std::optional<GgmlFormat> parse_ggml_format(std::string_view name);
KVIK_API std::string_view ggml_format_name(const GgmlFormat& format);

// Bytes that such a row takes. Requires: head_dim is a multiple of 32.
KVIK_API int64_t ggml_row_bytes(GgmlBlock block, int head_dim);

// invalid_argument unless rows of head_dim elements can be stored so: multiples of 32, of 64 where
// rotated.
KVIK_API Status check_ggml(const GgmlFormat& format, int head_dim);

// Rounds one row in place. Requires: check_ggml() is ok; elements finite and their blocks' scales
// within f16 (a larger one gives infinity).
KVIK_API void round_ggml_key(const GgmlFormat& format, int head_dim, float* row) noexcept;
KVIK_API void round_ggml_value(const GgmlFormat& format, int head_dim, float* row) noexcept;

// A hook that rounds keys and values of every layer, those sides that name a format; empty when
// neither does. Requires: check_ggml() is ok for the model's head dimensions.
KVIK_API RowHook ggml_hook(std::optional<GgmlFormat> keys, std::optional<GgmlFormat> values);

}  // namespace kvik
