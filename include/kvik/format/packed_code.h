// The packed storage formats of keys and values: names, sizes, and which head dims they take.
// docs/formats.md draws the rows of each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// How one row (one head of one token) is packed. The number in a name is the bits of a code.
//   q*    KV-Quant, K and V: signed codes, one f32 scale per row
//   tqk_* TurboQuant keys: unsigned codes (q8_0: signed), f16 scale and zero point per 32 elements
//   tqv_* TurboQuant values: rotated, Lloyd-Max codes, f16 scale per 32 elements
//   tq*   K and V: rotated, int8 levels, one unbiased f16 scale per row
//   tcq*  K and V: as tq*, levels chosen by a four-state trellis
enum class PackedCode : uint8_t {
  q8,
  q6,
  q4,
  tqk_q8_0,
  tqk_uint8,
  tqk_q5_0,
  tqk_q4_0,
  tqk_int2,
  tqv_q2_0,
  tqv_q3_0,
  tqv_q4_0,
  tqv_q5_0,
  tqv_q8_0,
  tq8,
  tq4,
  tq3,
  tq2,
  tcq4,
  tcq3,
  tcq2,
};

// All codes, in the order of the enum.
KVIK_API std::span<const PackedCode> all_packed_codes();

// The enumerator's name, such as "tqk_q8_0"; unique.
KVIK_API std::string_view packed_code_name(PackedCode code);

// Bits of one code, scales not counted.
KVIK_API int packed_code_bits(PackedCode code);

// What the code may hold. TurboQuant codes hold one of the two.
KVIK_API bool stores_keys(PackedCode code);
KVIK_API bool stores_values(PackedCode code);

// Whether rows are stored after signs and Hadamard, so that queries (K) or outputs (V) must be
// rotated too.
KVIK_API bool is_rotated(PackedCode code);

// Each name space has a parser of its own, because q4_0 and q8_0 mean another format in each.
// Errors: invalid_argument that lists the names.

// Names of packed_code_name.
KVIK_API Result<PackedCode> parse_packed_code(std::string_view name);

// Modes of KV-Quant in any letter case, '-' read as '_'; nullopt means off.
//   off: "" off none false 0 disabled disable
//   q8:  q8 8 8bit int8 uint8 q8_0       q6: q6 6 6bit int6 uint6
//   q4:  q4 4 4bit int4 uint4 q4_0
KVIK_API Result<std::optional<PackedCode>> parse_kv_quant_mode(std::string_view name);

// TurboQuant types: keys q8_0 int8 uint8 q5_0 q4_0 int4 uint4 int2 uint2 (every type under 8 bits
// is unsigned whatever its name); values q2_0 q3_0 q4_0 q5_0 q8_0.
KVIK_API Result<PackedCode> parse_turboquant_key(std::string_view name);
KVIK_API Result<PackedCode> parse_turboquant_value(std::string_view name);

// Ok where `code` stores rows of `head_dim` floats, else invalid_argument that says which head dims
// it takes and which codes would store this one:
//   q8 any, q6 multiples of 4, q4 even, up to kMaxHeadDim; tqk_*, tqv_* multiples of 32 up to
//   kMaxHeadDim; tq*, tcq* multiples of 16 from 32 to 512.
KVIK_API Status check(PackedCode code, int head_dim);

// Bytes of the parts of a packed row. The parts follow each other without padding, little endian:
// codes, then scales (f32 for q*, else f16), then zero points (f16, tqk_* only).
struct PackedRowLayout {
  int64_t code_bytes = 0;
  int64_t scale_bytes = 0;
  int64_t zero_bytes = 0;

  constexpr int64_t row_bytes() const { return code_bytes + scale_bytes + zero_bytes; }
};

// Requires: check(code, head_dim).ok().
KVIK_API PackedRowLayout packed_row_layout(PackedCode code, int head_dim);
KVIK_API int64_t packed_row_bytes(PackedCode code, int head_dim);

}  // namespace kvik
