// The bit stream of a packed row: element i owns bits [i*bits, (i+1)*bits), bit 0 being the lowest
// bit of byte 0. An element may straddle two bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvik::internal {

// Requires: 1 <= bits <= 8, codes below 2^bits; `out` has count * bits / 8 bytes, and count * bits
// is a multiple of 8.
inline void pack_bits(const uint8_t* codes, int count, int bits, std::byte* out) noexcept {
  uint32_t pending = 0;
  int num_pending = 0;
  for (int i = 0; i < count; ++i) {
    pending |= static_cast<uint32_t>(codes[i]) << num_pending;
    num_pending += bits;
    if (num_pending >= 8) {
      *out++ = static_cast<std::byte>(pending & 0xffu);
      pending >>= 8;
      num_pending -= 8;
    }
  }
}

// Requires: as above.
inline void unpack_bits(const std::byte* in, int count, int bits, uint8_t* codes) noexcept {
  uint32_t pending = 0;
  int num_pending = 0;
  for (int i = 0; i < count; ++i) {
    if (num_pending < bits) {
      pending |= static_cast<uint32_t>(*in++) << num_pending;
      num_pending += 8;
    }
    codes[i] = static_cast<uint8_t>(pending & ((1u << bits) - 1u));
    pending >>= bits;
    num_pending -= bits;
  }
}

}  // namespace kvik::internal
