// The packed storage formats of keys and values: the names that their makers gave them, and the
// bytes of a packed row. docs/formats.md draws the rows of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/format/kv_format.h"

namespace kvik {

// Bits of one code of a packed format, scales not counted.
KVIK_API int packed_code_bits(KvCode code);

// Each name space has a parser of its own, because q4_0 and q8_0 mean another format in each.
// Errors: invalid_argument that lists the names.

// Modes of KV-Quant in any letter case, '-' read as '_'; nullopt means off.
//   off: "" off none false 0 disabled disable
//   q8:  q8 8 8bit int8 uint8 q8_0       q6: q6 6 6bit int6 uint6
//   q4:  q4 4 4bit int4 uint4 q4_0
KVIK_API Result<std::optional<KvCode>> parse_kv_quant_mode(std::string_view name);

// TurboQuant types: keys q8_0 int8 uint8 q5_0 q4_0 int4 uint4 int2 uint2 (every type under 8 bits
// is unsigned whatever its name); values q2_0 q3_0 q4_0 q5_0 q8_0.
KVIK_API Result<KvCode> parse_turboquant_key(std::string_view name);
KVIK_API Result<KvCode> parse_turboquant_value(std::string_view name);

// Bytes of the parts of a packed row. The parts follow each other without padding, little endian:
// codes, then scales (f32 for q*, else f16), then zero points (f16, tqk_* only).
struct PackedRowLayout {
  int64_t code_bytes = 0;
  int64_t scale_bytes = 0;
  int64_t zero_bytes = 0;

  constexpr int64_t row_bytes() const { return code_bytes + scale_bytes + zero_bytes; }
};

// Requires: is_packed(code), check(code, head_dim).ok().
KVIK_API PackedRowLayout packed_row_layout(KvCode code, int head_dim);
KVIK_API int64_t packed_row_bytes(KvCode code, int head_dim);

}  // namespace kvik
