// Where the bits of a packed tile lie; docs/tile-layout.md draws them.
//
// A tile is cut in chunks of 16 elements of 16 lanes: in K an element is a dim and a lane a token,
// in V an element is a token and a lane a dim. The codes are split in planes of 8, 4, 2 or 1 bits,
// lowest bits first; each plane is a run of lines. With e = element in its chunk:
//   plane of w > 1 bits   line chunk * w / 2 + e * w / 32, bits [e * w % 32, + w) of the lane's
//   word plane of 1 bit        line chunk / 2, bit chunk % 2 * 16 + e
// Then scales, and zero points (tqk_*): [group of 32 dims, or one][token].
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/packed_traits.h"
#include "kvik/core/dtype.h"

namespace kvik::internal {

inline constexpr int kChunk = 16;
inline constexpr int kMaxPlanes = 3;

// Bits of the planes of a code, zero where there are fewer than three. The code of a trellis is
// up + 2^(bits - 1) * u.
struct PlaneBits {
  int bits[kMaxPlanes];
};

constexpr PlaneBits planes_of(const PackedTraits& traits) {
  const bool is_trellis = traits.family == PackedFamily::trellis;
  switch (traits.bits) {
    case 6:
      return {{4, 2, 0}};
    case 5:
      return {{4, 1, 0}};
    case 4:
      return is_trellis ? PlaneBits{{2, 1, 1}} : PlaneBits{{4, 0, 0}};
    case 3:
      return {{2, 1, 0}};
    case 2:
      return is_trellis ? PlaneBits{{1, 1, 0}} : PlaneBits{{2, 0, 0}};
    default:
      return {{8, 0, 0}};
  }
}

constexpr int num_chunks(int head_dim) { return (head_dim + kChunk - 1) / kChunk; }
constexpr int64_t plane_bytes(int bits, int head_dim) {
  return (int64_t{num_chunks(head_dim)} * bits + 1) / 2 * 64;
}
constexpr int num_scale_groups(const PackedTraits& traits, int head_dim) {
  const bool per_32 = traits.family == PackedFamily::turboquant_key ||
                      traits.family == PackedFamily::turboquant_value;
  return per_32 ? (head_dim + kTurboQuantGroup - 1) / kTurboQuantGroup : 1;
}
constexpr int scale_bytes(const PackedTraits& traits) {
  return traits.family == PackedFamily::kv_quant ? 4 : 2;
}

// Byte offset of the scales: after all planes.
constexpr int64_t scales_offset(const PackedTraits& traits, int head_dim) {
  int64_t bytes = 0;
  for (const int bits : planes_of(traits).bits) bytes += plane_bytes(bits, head_dim);
  return bytes;
}
constexpr int64_t zeros_offset(const PackedTraits& traits, int head_dim) {
  return scales_offset(traits, head_dim) +
         int64_t{num_scale_groups(traits, head_dim)} * kChunk * scale_bytes(traits);
}
constexpr int64_t tile_bytes(const PackedTraits& traits, int head_dim) {
  const bool has_zeros = traits.family == PackedFamily::turboquant_key;
  return zeros_offset(traits, head_dim) +
         (has_zeros ? int64_t{num_scale_groups(traits, head_dim)} * kChunk * 2 : 0);
}

// What the public functions of tile.h do for packed codes.
bool encode_packed_row(KvCode code, bool is_key, std::byte* tile, int slot, const std::byte* row,
                       DType dtype, int head_dim) noexcept;
void decode_packed_row(KvCode code, bool is_key, const std::byte* tile, int slot, float* row,
                       int head_dim, bool stored) noexcept;

}  // namespace kvik::internal
