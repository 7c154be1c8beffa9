// Weight formats of 32 values with one f16 scale d (and, in the _1 forms, one f16 offset m).
// Layouts (little-endian, no gaps):
//   q8_0: d, 32 × int8                         value = d·q
//   q4_0: d, 16 bytes of nibbles               value = d·(q − 8)
//   q4_1: d, m, 16 bytes of nibbles            value = d·q + m
//   q5_0: d, u32 of fifth bits, 16 bytes       value = d·(q − 16)
//   q5_1: d, m, u32 of fifth bits, 16 bytes    value = d·q + m
//   iq4_nl: d, 16 bytes of nibbles             value = d·kIq4NlValues[q]
// Byte i of the nibbles holds value i (low) and value i + 16 (high); bit i of the u32 belongs to
// value i. The product d·q is exact in f32 (11 significant bits times at most 8), so that only the
// sum with m rounds, and a fused multiply-add gives the same bits as a product and a sum.
#pragma once

#include <cstdint>

#include "kvik/core/dtype.h"
#include "model/unaligned.h"

namespace kvik::internal {

inline bool f16_finite(const std::byte* p) noexcept {
  return (load_unaligned<f16_bits>(p) & 0x7c00u) != 0x7c00u;
}
inline float f16_at(const std::byte* p) noexcept { return f16_to_f32(load_unaligned<f16_bits>(p)); }
inline int nibble(const std::byte* codes, int i) noexcept {
  return (std::to_integer<int>(codes[i % 16]) >> (i < 16 ? 0 : 4)) & 15;
}
inline int fifth_bit(uint32_t bits, int i) noexcept {
  return static_cast<int>((bits >> i) & 1u) << 4;
}

struct Q8_0Block {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 34;
  static void decode(const std::byte* p, float* out) noexcept {
    const float d = f16_at(p);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(load_unaligned<int8_t>(p + 2 + i));
  }
  static bool finite(const std::byte* p) noexcept { return f16_finite(p); }
};

struct Q4_0Block {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 18;
  static void decode(const std::byte* p, float* out) noexcept {
    const float d = f16_at(p);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(p + 2, i) - 8);
  }
  static bool finite(const std::byte* p) noexcept { return f16_finite(p); }
};

struct Q4_1Block {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 20;
  static void decode(const std::byte* p, float* out) noexcept {
    const float d = f16_at(p);
    const float m = f16_at(p + 2);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(p + 4, i)) + m;
  }
  static bool finite(const std::byte* p) noexcept { return f16_finite(p) && f16_finite(p + 2); }
};

struct Q5_0Block {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 22;
  static void decode(const std::byte* p, float* out) noexcept {
    const float d = f16_at(p);
    const auto bits = load_unaligned<uint32_t>(p + 2);
    for (int i = 0; i < 32; ++i) {
      out[i] = d * static_cast<float>((nibble(p + 6, i) | fifth_bit(bits, i)) - 16);
    }
  }
  static bool finite(const std::byte* p) noexcept { return f16_finite(p); }
};

struct Q5_1Block {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 24;
  static void decode(const std::byte* p, float* out) noexcept {
    const float d = f16_at(p);
    const float m = f16_at(p + 2);
    const auto bits = load_unaligned<uint32_t>(p + 4);
    for (int i = 0; i < 32; ++i) {
      out[i] = d * static_cast<float>(nibble(p + 8, i) | fifth_bit(bits, i)) + m;
    }
  }
  static bool finite(const std::byte* p) noexcept { return f16_finite(p) && f16_finite(p + 2); }
};

// Closer together near zero.
alignas(16) inline constexpr int8_t kIq4NlValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                        1,    13,   25,  38,  53,  69,  89,  113};

struct Iq4NlBlock {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 18;
  static void decode(const std::byte* p, float* out) noexcept {
    const float d = f16_at(p);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kIq4NlValues[nibble(p + 2, i)]);
  }
  static bool finite(const std::byte* p) noexcept { return f16_finite(p); }
};

}  // namespace kvik::internal
