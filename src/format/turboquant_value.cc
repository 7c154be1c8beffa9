// TurboQuant values: rotated (hadamard.h), then Lloyd-Max codes with an rms scale per 32 elements.
//
//   row   = stream of head_dim codes | scale f16[head_dim / 32]
//   y     = rotated x
//   scale = f16(sqrt(sum16(y^2 of the group) / 32))
//   code  = cell of y / scale (of 0 where scale is 0)
//   y'    = centroid[code] * scale
#include <array>
#include <cmath>

#include "format/bit_stream.h"
#include "format/hadamard.h"
#include "format/lloyd_max.h"
#include "format/row_families.h"
#include "format/row_math.h"
#include "kvik/format/kv_format.h"

namespace kvik::internal {

bool encode_turboquant_value(const PackedTraits& traits, const float* row, int head_dim,
                             std::byte* packed) noexcept {
  if (!all_finite(row, head_dim)) return false;
  float rotated[kMaxHeadDim];
  for (int i = 0; i < head_dim; ++i) rotated[i] = row[i];
  rotate(rotated, head_dim);
  const std::span<const float> boundaries = lloyd_max(traits.bits).boundaries;
  const int num_groups = head_dim / kTurboQuantGroup;
  std::array<f16_bits, kMaxHeadDim / kTurboQuantGroup> scales;
  uint8_t codes[kMaxHeadDim];
  for (int g = 0; g < num_groups; ++g) {
    const float* const y = rotated + g * kTurboQuantGroup;
    const float sum = sum16(kTurboQuantGroup, [y](int i) { return y[i] * y[i]; });
    if (!std::isfinite(sum)) return false;
    const f16_bits half = saturated_f16(std::sqrt(sum * (1.0f / 32.0f)));
    const float scale = f16_to_f32(half);
    for (int i = 0; i < kTurboQuantGroup; ++i) {
      codes[g * kTurboQuantGroup + i] = cell_of(scale == 0 ? 0.0f : y[i] / scale, boundaries);
    }
    scales[static_cast<size_t>(g)] = half;
  }
  pack_bits(codes, head_dim, traits.bits, packed);
  std::memcpy(packed + head_dim * traits.bits / 8, scales.data(),
              static_cast<size_t>(num_groups) * 2);
  return true;
}

void decode_turboquant_value(const PackedTraits& traits, const std::byte* packed, int head_dim,
                             float* rotated) noexcept {
  uint8_t codes[kMaxHeadDim];
  unpack_bits(packed, head_dim, traits.bits, codes);
  const std::span<const float> centroids = lloyd_max(traits.bits).centroids;
  const std::byte* const scales = packed + head_dim * traits.bits / 8;
  for (int i = 0; i < head_dim; ++i) {
    rotated[i] =
        centroids[codes[i]] * f16_to_f32(load_as<f16_bits>(scales + i / kTurboQuantGroup * 2));
  }
}

}  // namespace kvik::internal
