// The bit stream of a packed row: element i owns bits [i*bits, (i+1)*bits), bit 0 being the lowest
// bit of byte 0. An element may straddle two bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvik::internal {

// Requires: 1 <= bits <= 8, codes below 2^bits; `out` has count * bits / 8 bytes, and count * bits
// is a multiple of 8.
inline void pack_bits(const uint8_t* codes, int count, int bits, std::byte* out) noexcept {
  // Eight codes are `bits` whole bytes.
  for (int i = 0; i < count; i += 8) {
    const int taken = std::min(8, count - i);
    uint64_t word = 0;
    for (int j = 0; j < taken; ++j) word |= static_cast<uint64_t>(codes[i + j]) << (j * bits);
    for (int k = 0; k < taken * bits / 8; ++k) *out++ = static_cast<std::byte>(word >> (8 * k));
  }
}

// Requires: as above.
inline void unpack_bits(const std::byte* in, int count, int bits, uint8_t* codes) noexcept {
  const uint64_t mask = (1u << bits) - 1u;
  for (int i = 0; i < count; i += 8) {
    const int taken = std::min(8, count - i);
    uint64_t word = 0;
    for (int k = 0; k < taken * bits / 8; ++k) word |= static_cast<uint64_t>(*in++) << (8 * k);
    for (int j = 0; j < taken; ++j) {
      codes[i + j] = static_cast<uint8_t>(word >> (j * bits) & mask);
    }
  }
}

}  // namespace kvik::internal
