// The codecs of one row, one pair per family: codes[] hold one code an element, scales and zero
// points lie in the packed row (docs/formats.md). Contracts as in kvik/format/row_codec.h; head
// dims are checked by the caller.
#pragma once

#include <cstddef>

#include "format/packed_traits.h"

namespace kvik::internal {

// kv_quant.cc
bool encode_kv_quant(const PackedTraits& traits, const float* row, int head_dim,
                     std::byte* packed) noexcept;
void decode_kv_quant(const PackedTraits& traits, const std::byte* packed, int head_dim,
                     float* row) noexcept;

// turboquant_key.cc
bool encode_turboquant_key(const PackedTraits& traits, const float* row, int head_dim,
                           std::byte* packed) noexcept;
void decode_turboquant_key(const PackedTraits& traits, const std::byte* packed, int head_dim,
                           float* row) noexcept;

// The rotated families decode to rows that are still rotated.

// turboquant_value.cc
bool encode_turboquant_value(const PackedTraits& traits, const float* row, int head_dim,
                             std::byte* packed) noexcept;
void decode_turboquant_value(const PackedTraits& traits, const std::byte* packed, int head_dim,
                             float* rotated) noexcept;

// scalar_levels.cc
bool encode_scalar(const PackedTraits& traits, const float* row, int head_dim,
                   std::byte* packed) noexcept;
void decode_scalar(const PackedTraits& traits, const std::byte* packed, int head_dim,
                   float* rotated) noexcept;

// trellis.cc
bool encode_trellis(const PackedTraits& traits, const float* row, int head_dim,
                    std::byte* packed) noexcept;
void decode_trellis(const PackedTraits& traits, const std::byte* packed, int head_dim,
                    float* rotated) noexcept;

}  // namespace kvik::internal
