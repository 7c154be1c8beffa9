// Scalar codecs of packed rows: the definition that every faster codec must equal.
//
// All arithmetic is f32 with one IEEE rounding per operation, denormals kept, ties to even; the
// caller's thread must run in that mode (the default one). Rows do not depend on each other.
#pragma once

#include <cstddef>
#include <span>

#include "kvik/core/export.h"
#include "kvik/format/packed_code.h"

namespace kvik {

// Encodes row.size() floats. Returns false, with nothing written, for a row that the format cannot
// store: an element is not finite, or a statistic of the row (its range, its sum of squares, its
// largest decoded value) overflows f32. Finite scales beyond f16 saturate.
// Requires: check(code, row.size()).ok(), packed.size() == packed_row_bytes(code, row.size()).
KVIK_API bool encode_row(KvCode code, std::span<const float> row,
                         std::span<std::byte> packed) noexcept;

// The values that a packed row stands for. Requires: sizes as above; any bytes are a valid row of
// tcq*, tq4, tq3, tq2, tqv_* and q*; scales and zero points that are not finite give values that
// are not finite.
KVIK_API void decode_row(KvCode code, std::span<const std::byte> packed,
                         std::span<float> row) noexcept;

// The same before the inverse rotation: the values that attention multiplies with a rotated query
// or sums into a rotated output. Equal to decode_row where !is_rotated(code).
KVIK_API void decode_stored_row(KvCode code, std::span<const std::byte> packed,
                                std::span<float> row) noexcept;

// Whether every value that the row stands for is finite, whatever its codes: what bytes from
// elsewhere must pass before attention may read them. Looks at the scales and zero points alone.
// Requires: packed.size() is packed_row_bytes(code, head_dim).
KVIK_API bool is_finite_row(KvCode code, std::span<const std::byte> packed, int head_dim) noexcept;

}  // namespace kvik
