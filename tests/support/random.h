// Test data that can be rebuilt bit for bit anywhere (tests/golden/attention/README.md, "bell").
#pragma once

#include <cstdint>
#include <vector>

namespace kvik::test {

// Output number i of the splitmix64 stream that starts at `seed`.
inline uint64_t hash64(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Bell-shaped in (-4, 4), standard deviation 1.155, exact in f32.
inline float bell_at(uint64_t seed, uint64_t i) {
  const uint64_t z = hash64(seed, i);
  const auto sum =
      static_cast<int64_t>((z & 0xffff) + ((z >> 16) & 0xffff) + ((z >> 32) & 0xffff) + (z >> 48));
  return static_cast<float>(sum - 131070) * 0x1p-15f;
}

inline std::vector<float> bell(uint64_t seed, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = bell_at(seed, i);
  return values;
}

// A uniform integer in [0, limit).
inline int64_t below(uint64_t seed, uint64_t i, int64_t limit) {
  return static_cast<int64_t>(hash64(seed, i) % static_cast<uint64_t>(limit));
}

}  // namespace kvik::test
