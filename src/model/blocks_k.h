// Weight formats of 256 values: super blocks, whose runs of 16 or 32 values have small integer
// scales under one f16 scale d (and, where values have an offset, small integers under one f16 m).
// Layouts (little-endian, no gaps), q of value i, with run = i / 32 and at = i % 32:
//   q2_k: 16 bytes of scale (low nibble) and min (high), 64 bytes of codes, d, m
//         q = 2 bits of codes[32·(run/4) + at] from bit 2·(run%4)       value = (d·scale)·q − m·min
//   q3_k: 32 bytes of third bits, 64 bytes of codes as in q2_k, 12 bytes of 6-bit scales, d
//         q = those 2 bits | 4·(bit `run` of third[at])      value = (d·(scale − 32))·(q − 4)
//   q4_k: d, m, 12 bytes of 6-bit scales and mins, 128 bytes of nibbles
//         q = nibble run%2 of codes[32·(run/2) + at]         value = (d·scale)·q − m·min
//   q5_k: d, m, 12 bytes as in q4_k, 32 bytes of fifth bits, 128 bytes of nibbles as in q4_k
//         q = that nibble | 16·(bit `run` of fifth[at])      value = (d·scale)·q − m·min
//   q6_k: 128 bytes of nibbles, 64 bytes of upper bits, 16 × int8 scale, d
//         q = nibble run%4/2 of codes[64·(run/4) + 32·(run%2) + at]
//             | 16·(2 bits of upper[32·(run/4) + at] from bit 2·(run%4))
//                                                            value = (d·scale)·(q − 32)
// Runs of 16 have their own scale in q2_k, q3_k and q6_k, runs of 32 in q4_k and q5_k.
// Both products are exact in f32 (at most 11 + 7 + 5 significant bits, far from its smallest
// numbers), so that only the difference rounds, and a fused multiply-subtract gives the same bits.
#pragma once

#include <cstdint>

#include "model/blocks_32.h"
#include "model/unaligned.h"

namespace kvik::internal {

// Eight bytes each: scale (or min) j in byte j.
struct SubScales {
  uint64_t first;
  uint64_t second;
};
// The 12 bytes of a q3_k block: scales 0 to 7 and 8 to 15, with 32 not yet taken off.
inline SubScales q3_k_scales(const std::byte* p) noexcept {
  constexpr uint64_t kNibbles = 0x0f0f0f0f0f0f0f0fu;
  constexpr uint64_t kPairs = 0x0303030303030303u;
  const auto low = load_unaligned<uint64_t>(p);
  const uint64_t upper = load_unaligned<uint32_t>(p + 8);
  const uint64_t both = upper | ((upper >> 2) << 32);  // stray bits fall to the mask
  return {(low & kNibbles) | ((both & kPairs) << 4),
          ((low >> 4) & kNibbles) | (((both >> 4) & kPairs) << 4)};
}
// The 12 bytes of a q4_k or q5_k block: scales, then mins.
inline SubScales q4_k_scales(const std::byte* p) noexcept {
  const auto scales = load_unaligned<uint32_t>(p);
  const auto mins = load_unaligned<uint32_t>(p + 4);
  const auto rest = load_unaligned<uint32_t>(p + 8);
  const uint64_t late_scales = (rest & 0x0f0f0f0fu) | ((scales >> 2) & 0x30303030u);
  const uint64_t late_mins = ((rest >> 4) & 0x0f0f0f0fu) | ((mins >> 2) & 0x30303030u);
  return {(scales & 0x3f3f3f3fu) | (late_scales << 32), (mins & 0x3f3f3f3fu) | (late_mins << 32)};
}
inline float byte_of(uint64_t bytes, int i) noexcept {
  return static_cast<float>((bytes >> (8 * i)) & 255u);
}
// `count` bits of a byte from bit `from`.
inline int bits_of(std::byte byte, int from, int count) noexcept {
  return (std::to_integer<int>(byte) >> from) & ((1 << count) - 1);
}

struct Q2_KBlock {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 84;
  static void decode(const std::byte* p, float* out) noexcept {
    const float d = f16_at(p + 80);
    const float m = f16_at(p + 82);
    for (int i = 0; i < 256; ++i) {
      const int run = i / 32;
      const float scale = d * static_cast<float>(bits_of(p[i / 16], 0, 4));
      const float min = m * static_cast<float>(bits_of(p[i / 16], 4, 4));
      const int q = bits_of(p[16 + run / 4 * 32 + i % 32], run % 4 * 2, 2);
      out[i] = scale * static_cast<float>(q) - min;
    }
  }
  static bool finite(const std::byte* p) noexcept {
    return f16_finite(p + 80) && f16_finite(p + 82);
  }
};

struct Q3_KBlock {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 110;
  static void decode(const std::byte* p, float* out) noexcept {
    const float d = f16_at(p + 108);
    const SubScales scales = q3_k_scales(p + 96);
    for (int i = 0; i < 256; ++i) {
      const int run = i / 32;
      const float code = byte_of(i < 128 ? scales.first : scales.second, i / 16 % 8);
      const int q =
          bits_of(p[32 + run / 4 * 32 + i % 32], run % 4 * 2, 2) | bits_of(p[i % 32], run, 1) << 2;
      out[i] = d * (code - 32) * static_cast<float>(q - 4);
    }
  }
  static bool finite(const std::byte* p) noexcept { return f16_finite(p + 108); }
};

struct Q4_KBlock {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 144;
  static void decode(const std::byte* p, float* out) noexcept {
    const float d = f16_at(p);
    const float m = f16_at(p + 2);
    const SubScales s = q4_k_scales(p + 4);
    for (int i = 0; i < 256; ++i) {
      const int run = i / 32;
      const int q = bits_of(p[16 + run / 2 * 32 + i % 32], run % 2 * 4, 4);
      out[i] = d * byte_of(s.first, run) * static_cast<float>(q) - m * byte_of(s.second, run);
    }
  }
  static bool finite(const std::byte* p) noexcept { return f16_finite(p) && f16_finite(p + 2); }
};

struct Q5_KBlock {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 176;
  static void decode(const std::byte* p, float* out) noexcept {
    const float d = f16_at(p);
    const float m = f16_at(p + 2);
    const SubScales s = q4_k_scales(p + 4);
    for (int i = 0; i < 256; ++i) {
      const int run = i / 32;
      const int q = bits_of(p[48 + run / 2 * 32 + i % 32], run % 2 * 4, 4) |
                    bits_of(p[16 + i % 32], run, 1) << 4;
      out[i] = d * byte_of(s.first, run) * static_cast<float>(q) - m * byte_of(s.second, run);
    }
  }
  static bool finite(const std::byte* p) noexcept { return f16_finite(p) && f16_finite(p + 2); }
};

struct Q6_KBlock {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 210;
  static void decode(const std::byte* p, float* out) noexcept {
    const float d = f16_at(p + 208);
    for (int i = 0; i < 256; ++i) {
      const int run = i / 32;
      const float scale = d * static_cast<float>(load_unaligned<int8_t>(p + 192 + i / 16));
      const int q = bits_of(p[run / 4 * 64 + run % 2 * 32 + i % 32], run % 4 / 2 * 4, 4) |
                    bits_of(p[128 + run / 4 * 32 + i % 32], run % 4 * 2, 2) << 4;
      out[i] = scale * static_cast<float>(q - 32);
    }
  }
  static bool finite(const std::byte* p) noexcept { return f16_finite(p + 208); }
};

}  // namespace kvik::internal
