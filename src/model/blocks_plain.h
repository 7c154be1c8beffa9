// Weight formats without blocks: one value after the other.
#pragma once

#include <cstdint>

#include "kvik/core/dtype.h"
#include "model/unaligned.h"

namespace kvik::internal {

// A format says: how many values a block holds in how many bytes; how to decode one block exactly;
// whether all of its values are finite.
struct F32Block {
  static constexpr int kElements = 1;
  static constexpr int kBytes = 4;
  static void decode(const std::byte* p, float* out) noexcept { *out = load_unaligned<float>(p); }
  static bool finite(const std::byte* p) noexcept {
    return (load_unaligned<uint32_t>(p) & 0x7f800000u) != 0x7f800000u;
  }
};

struct F16Block {
  static constexpr int kElements = 1;
  static constexpr int kBytes = 2;
  static void decode(const std::byte* p, float* out) noexcept {
    *out = f16_to_f32(load_unaligned<f16_bits>(p));
  }
  static bool finite(const std::byte* p) noexcept {
    return (load_unaligned<f16_bits>(p) & 0x7c00u) != 0x7c00u;
  }
};

struct Bf16Block {
  static constexpr int kElements = 1;
  static constexpr int kBytes = 2;
  static void decode(const std::byte* p, float* out) noexcept {
    *out = bf16_to_f32(load_unaligned<bf16_bits>(p));
  }
  static bool finite(const std::byte* p) noexcept {
    return (load_unaligned<bf16_bits>(p) & 0x7f80u) != 0x7f80u;
  }
};

}  // namespace kvik::internal
