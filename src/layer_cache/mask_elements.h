// One element of a mask array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvik/core/dtype.h"
#include "kvik/layer_cache/causal_mask.h"

namespace kvik::internal {

// other: an additive value that neither hides nor leaves alone.
enum class MaskElement : uint8_t { hidden, visible, other };

// Of an additive mask. Requires: type is not boolean.
inline float mask_number(MaskType type, const std::byte* at) {
  float x = 0;
  if (type == MaskType::f32) {
    std::memcpy(&x, at, sizeof x);
  } else {
    uint16_t bits = 0;
    std::memcpy(&bits, at, sizeof bits);
    x = type == MaskType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  return x;
}

inline MaskElement mask_element(MaskType type, const std::byte* at) {
  if (type == MaskType::boolean) {
    return *at != std::byte{0} ? MaskElement::visible : MaskElement::hidden;
  }
  const float x = mask_number(type, at);
  if (x == 0.0f) return MaskElement::visible;
  const float lowest = type == MaskType::f32   ? -3.40282347e38f
                       : type == MaskType::f16 ? -65504.0f
                                               : bf16_to_f32(0xff7f);
  return x <= lowest ? MaskElement::hidden : MaskElement::other;
}

}  // namespace kvik::internal
