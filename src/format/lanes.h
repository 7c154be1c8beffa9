// Four lanes at a time for encoders. GCC's vector extension is compiled to what every build has, so
// that rows are encoded by one code, and to the same bits, on every machine.
#pragma once

#include <cstdint>
#include <cstring>

namespace kvik::internal {

using Floats4 = float __attribute__((vector_size(16)));
using Ints4 = int32_t __attribute__((vector_size(16)));

// No alignment needed.
inline Floats4 load4(const float* from) noexcept {
  Floats4 lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}
inline void store4(float* to, Floats4 lanes) noexcept { std::memcpy(to, &lanes, sizeof lanes); }

inline Floats4 all4(float x) noexcept { return Floats4{x, x, x, x}; }

// y where either is NaN.
inline Floats4 min4(Floats4 x, Floats4 y) noexcept { return x < y ? x : y; }

}  // namespace kvik::internal
