// Element types of tensors that enter and leave the library, and exact conversions between them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "kvik/core/export.h"

namespace kvik {

enum class DType : uint8_t { f32, f16, bf16 };

constexpr int64_t dtype_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// "f32", "f16", "bf16".
KVIK_API std::string_view dtype_name(DType dtype);

// IEEE binary16 and bfloat16 as bits. Conversions round to nearest, ties to even; overflow gives
// infinity, denormals are kept, and every NaN becomes one quiet NaN (bf16) or keeps its upper
// payload bits (f16), as F16C hardware does.
using f16_bits = uint16_t;
using bf16_bits = uint16_t;

constexpr float bf16_to_f32(bf16_bits b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

constexpr bf16_bits f32_to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<bf16_bits>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

constexpr float f16_to_f32(f16_bits h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, NaN (made quiet)
    const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (magnitude << 13));
  }
  if (magnitude < 0x0400u) {  // zero and denormals: magnitude * 2^-24, exact
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

constexpr f16_bits f32_to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<f16_bits>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<f16_bits>(sign | 0x7c00u);  // rounds to 2^16
  if (magnitude < 0x38800000u) {  // below 2^-14: round to a multiple of 2^-24
    // Adding 0.5 puts the wanted bits at the bottom of the mantissa and rounds in hardware.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<f16_bits>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<f16_bits>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

// One element in memory, at any address. Storing rounds as above.
inline float load_float(DType dtype, const std::byte* from) noexcept {
  if (dtype == DType::f32) {
    float x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return dtype == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}
inline void store_float(DType dtype, std::byte* to, float x) noexcept {
  if (dtype == DType::f32) {
    std::memcpy(to, &x, sizeof x);
    return;
  }
  const uint16_t bits = dtype == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x);
  std::memcpy(to, &bits, sizeof bits);
}

}  // namespace kvik
