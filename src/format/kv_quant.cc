// KV-Quant q8, q6, q4: one f32 scale per row, no rotation.
//
//   row = stream of head_dim codes of 8, 6 or 4 bits | scale f32
//   scale = max(largest |x| / qmax, f32(1e-6)), qmax = 127, 31, 7
//   code  = clip(rint(x / scale), -qmax, qmax); stored as int8 (q8), code + 32 (q6), code + 8 (q4)
//   x'    = code * scale
#include <cmath>

#include "format/bit_stream.h"
#include "format/row_families.h"
#include "format/row_math.h"
#include "kvik/format/kv_format.h"

namespace kvik::internal {
namespace {

// What is added to a code before it is stored; int8 wraps round by itself.
constexpr int offset_of(int bits) { return bits == 8 ? 0 : 1 << (bits - 1); }
constexpr int qmax_of(int bits) { return (1 << (bits - 1)) - 1; }

}  // namespace

bool encode_kv_quant(const PackedTraits& traits, const float* row, int head_dim,
                     std::byte* packed) noexcept {
  const int bits = traits.bits;
  const auto qmax = static_cast<float>(qmax_of(bits));
  if (!all_finite(row, head_dim)) return false;
  const float scale = std::max(peak_of(row, head_dim) / qmax, 1e-6f);
  // Within a few ulp of the largest float the decoded peak would be infinite.
  if (!std::isfinite(scale * qmax)) return false;
  uint8_t codes[kMaxHeadDim];
  for (int i = 0; i < head_dim; ++i) {
    const float code = std::clamp(round_even(row[i] / scale), -qmax, qmax);
    codes[i] = static_cast<uint8_t>(static_cast<int>(code) + offset_of(bits));
  }
  pack_bits(codes, head_dim, bits, packed);
  store_as(packed + head_dim * bits / 8, scale);
  return true;
}

void decode_kv_quant(const PackedTraits& traits, const std::byte* packed, int head_dim,
                     float* row) noexcept {
  const int bits = traits.bits;
  uint8_t codes[kMaxHeadDim];
  unpack_bits(packed, head_dim, bits, codes);
  const auto scale = load_as<float>(packed + head_dim * bits / 8);
  for (int i = 0; i < head_dim; ++i) {
    const int code = bits == 8 ? static_cast<int8_t>(codes[i]) : codes[i] - offset_of(bits);
    row[i] = static_cast<float>(code) * scale;
  }
}

}  // namespace kvik::internal
