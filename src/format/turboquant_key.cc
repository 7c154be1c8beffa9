// TurboQuant keys: affine per 32 elements, no rotation.
//
//   row   = stream of head_dim codes | scale f16[head_dim / 32] | zero f16[head_dim / 32]
//   scale = smallest half >= max((max - min) / steps, largest |x| / 2048)
//           steps = 254 (signed), 2^bits - 1
//   zero  = clip(rint(m / scale), -2048, 2048); m = min, or max/2 + min/2 where signed
//   code  = clip(rint(x / scale - zero), ...); two's complement where signed
//   x'    = (code + zero) * scale, exact in f32 before the product
// A group without a range (max = min, or every |x| < 2^-100): codes 0, scale = f16(|x|), zero = the
// sign of x, so x' is f16(x). The bound |x| / 2048 keeps the zero point an exact half; rounding the
// scale up keeps every element within reach of its codes.
#include <array>
#include <cmath>

#include "format/bit_stream.h"
#include "format/row_families.h"
#include "format/row_math.h"
#include "kvik/format/kv_format.h"

namespace kvik::internal {
namespace {

constexpr int kMaxGroups = kMaxHeadDim / kTurboQuantGroup;
constexpr float kMaxZero = 2048;

struct GroupScale {
  f16_bits scale = 0;
  f16_bits zero = 0;
  bool flat = false;  // codes are 0
};

struct CodeRange {
  float least, most, steps;
};

CodeRange code_range(const PackedTraits& traits) {
  const auto most = static_cast<float>(traits.is_signed ? 127 : (1 << traits.bits) - 1);
  return traits.is_signed ? CodeRange{-most, most, 254} : CodeRange{0, most, most};
}

// Requires: low <= high, high - low finite.
GroupScale scale_group(float low, float high, const CodeRange& range, bool is_signed) {
  const float peak = std::max(std::fabs(high), std::fabs(low));
  GroupScale group;
  group.flat = high == low || peak < kTiny;
  if (group.flat) {
    group.scale = saturated_f16(peak);
    group.zero = f32_to_f16(group.scale == 0 ? 0.0f : std::copysign(1.0f, high));
    return group;
  }
  group.scale = f16_not_below(std::max((high - low) / range.steps, peak / kMaxZero));
  const float middle = is_signed ? high * 0.5f + low * 0.5f : low;
  const float zero = std::nearbyint(middle / f16_to_f32(group.scale));
  group.zero = f32_to_f16(std::clamp(zero, -kMaxZero, kMaxZero));
  return group;
}

void encode_group(const GroupScale& group, const CodeRange& range, const float* x,
                  uint8_t* codes) noexcept {
  const float scale = f16_to_f32(group.scale);
  const float zero = f16_to_f32(group.zero);
  for (int i = 0; i < kTurboQuantGroup; ++i) {
    const float code =
        group.flat ? 0.0f : std::clamp(round_even(x[i] / scale - zero), range.least, range.most);
    codes[i] = static_cast<uint8_t>(static_cast<int>(code));
  }
}

}  // namespace

bool encode_turboquant_key(const PackedTraits& traits, const float* row, int head_dim,
                           std::byte* packed) noexcept {
  if (!all_finite(row, head_dim)) return false;
  const CodeRange range = code_range(traits);
  const int num_groups = head_dim / kTurboQuantGroup;
  std::array<f16_bits, kMaxGroups> scales, zeros;
  uint8_t codes[kMaxHeadDim];
  for (int g = 0; g < num_groups; ++g) {
    const float* const x = row + g * kTurboQuantGroup;
    const auto [least, most] = std::minmax_element(x, x + kTurboQuantGroup);
    // -0 becomes +0: which of the two a minimum returns depends on its order.
    const float low = *least + 0.0f;
    const float high = *most + 0.0f;
    if (!std::isfinite(high - low)) return false;
    const GroupScale group = scale_group(low, high, range, traits.is_signed);
    encode_group(group, range, x, codes + g * kTurboQuantGroup);
    scales[static_cast<size_t>(g)] = group.scale;
    zeros[static_cast<size_t>(g)] = group.zero;
  }
  pack_bits(codes, head_dim, traits.bits, packed);
  std::byte* const tail = packed + head_dim * traits.bits / 8;
  std::memcpy(tail, scales.data(), static_cast<size_t>(num_groups) * 2);
  std::memcpy(tail + num_groups * 2, zeros.data(), static_cast<size_t>(num_groups) * 2);
  return true;
}

void decode_turboquant_key(const PackedTraits& traits, const std::byte* packed, int head_dim,
                           float* row) noexcept {
  uint8_t codes[kMaxHeadDim];
  unpack_bits(packed, head_dim, traits.bits, codes);
  const std::byte* const scales = packed + head_dim * traits.bits / 8;
  const std::byte* const zeros = scales + head_dim / kTurboQuantGroup * 2;
  for (int i = 0; i < head_dim; ++i) {
    const int g = i / kTurboQuantGroup;
    const int code = traits.is_signed ? static_cast<int8_t>(codes[i]) : codes[i];
    row[i] = (static_cast<float>(code) + f16_to_f32(load_as<f16_bits>(zeros + 2 * g))) *
             f16_to_f32(load_as<f16_bits>(scales + 2 * g));
  }
}

}  // namespace kvik::internal
