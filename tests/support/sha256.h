// SHA-256 (FIPS 180-4), for comparing with digests that other programs wrote.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvik::test {

// The first 32 bits of the fractional parts of the square (or cube) roots of the first primes.
template <size_t kCount>
std::array<uint32_t, kCount> sha_constants(bool cube) {
  std::array<uint32_t, kCount> constants{};
  size_t found = 0;
  for (int n = 2; found < kCount; ++n) {
    bool prime = true;
    for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    const long double root = cube ? cbrtl(static_cast<long double>(n)) : sqrtl(n);
    constants[found++] = static_cast<uint32_t>((root - floorl(root)) * 4294967296.0L);
  }
  return constants;
}

inline std::string sha256_hex(std::span<const std::byte> message) {
  static const auto kRound = sha_constants<64>(true);
  std::array<uint32_t, 8> h = sha_constants<8>(false);
  std::vector<uint8_t> data;
  data.reserve(message.size() + 72);
  for (const std::byte b : message) data.push_back(static_cast<uint8_t>(b));
  data.push_back(0x80);
  while (data.size() % 64 != 56) data.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8) {
    data.push_back(static_cast<uint8_t>(uint64_t{message.size()} * 8 >> shift));
  }
  for (size_t at = 0; at < data.size(); at += 64) {
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 16; ++i) {
      const uint8_t* p = &data[at + 4 * i];
      w[i] = uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
    }
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15];
      const uint32_t b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    std::array<uint32_t, 8> s = h;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
      const uint32_t t1 = s[7] + s1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[i] + w[i];
      const uint32_t s0 = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
      const uint32_t t2 = s0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
    }
    for (size_t i = 0; i < 8; ++i) h[i] += s[i];
  }
  std::string hex;
  for (const uint32_t word : h) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
  }
  return hex;
}

}  // namespace kvik::test
