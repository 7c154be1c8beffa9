// The kernels in portable C++: 16 lanes as an array. Always there, and the same bits as every other
// spine: std::fma rounds once, as the vector instructions do.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "backend/cpu/attend_task.h"
#include "format/hadamard.h"
#include "format/level_tables.h"
#include "format/lloyd_max.h"
#include "format/packed_tile.h"
#include "kvik/core/dtype.h"

namespace kvik::cpu {
namespace scalar {

struct Vec {
  float x[16];
};

// Accumulators that fit in registers.
constexpr int kAccumulators = 1;
// Query rows that a pass handles together.
constexpr int kRowsAtOnce = 1;

inline Vec vload(const float* p) {
  Vec v;
  std::memcpy(v.x, p, sizeof v.x);
  return v;
}
inline void vstore(float* p, Vec v) { std::memcpy(p, v.x, sizeof v.x); }
inline Vec vset(float s) {
  Vec v;
  for (float& x : v.x) x = s;
  return v;
}
inline Vec vadd(Vec a, Vec b) {
  for (int i = 0; i < 16; ++i) a.x[i] += b.x[i];
  return a;
}
inline Vec vsub(Vec a, Vec b) {
  for (int i = 0; i < 16; ++i) a.x[i] -= b.x[i];
  return a;
}
inline Vec vmul(Vec a, Vec b) {
  for (int i = 0; i < 16; ++i) a.x[i] *= b.x[i];
  return a;
}
inline Vec vdiv(Vec a, Vec b) {
  for (int i = 0; i < 16; ++i) a.x[i] /= b.x[i];
  return a;
}
inline Vec vfma(Vec a, Vec b, Vec c) {
  for (int i = 0; i < 16; ++i) c.x[i] = std::fma(a.x[i], b.x[i], c.x[i]);
  return c;
}
// b where either is NaN, as the vector instruction has it.
inline Vec vmax(Vec a, Vec b) {
  for (int i = 0; i < 16; ++i) b.x[i] = a.x[i] > b.x[i] ? a.x[i] : b.x[i];
  return b;
}
inline Vec vmin(Vec a, Vec b) {
  for (int i = 0; i < 16; ++i) b.x[i] = a.x[i] < b.x[i] ? a.x[i] : b.x[i];
  return b;
}
inline Vec vabs(Vec a) {
  for (float& x : a.x) x = std::fabs(x);
  return a;
}
inline Vec vcopysign(Vec magnitude, Vec sign) {
  for (int i = 0; i < 16; ++i) magnitude.x[i] = std::copysign(magnitude.x[i], sign.x[i]);
  return magnitude;
}
inline bool any_greater(Vec a, Vec b) {
  bool any = false;
  for (int i = 0; i < 16; ++i) any |= a.x[i] > b.x[i];
  return any;
}
// yes where a < b, else no (no where either is NaN).
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
  for (int i = 0; i < 16; ++i) no.x[i] = a.x[i] < b.x[i] ? yes.x[i] : no.x[i];
  return no;
}
inline Vec select_nan(Vec a, Vec yes, Vec no) {
  for (int i = 0; i < 16; ++i) no.x[i] = a.x[i] != a.x[i] ? yes.x[i] : no.x[i];
  return no;
}
// Lanes outside [lo, hi) become `other`.
inline Vec keep_lanes(Vec a, int lo, int hi, float other) {
  for (int i = 0; i < 16; ++i) a.x[i] = i >= lo && i < hi ? a.x[i] : other;
  return a;
}
// a * 2^n, n held in the low bits of `biased` = n + 1.5 * 2^23.
inline Vec scale_by_power(Vec a, Vec biased) {
  for (int i = 0; i < 16; ++i) {
    const uint32_t n = std::bit_cast<uint32_t>(biased.x[i]) << 23;
    a.x[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(a.x[i]) + n);
  }
  return a;
}
inline float reduce_add(Vec a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.x[i] += a.x[i + half];
  }
  return a.x[0];
}
inline float reduce_max(Vec a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.x[i] = a.x[i] > a.x[i + half] ? a.x[i] : a.x[i + half];
  }
  return a.x[0];
}
inline void prefetch(const std::byte* p) { __builtin_prefetch(p); }

struct LineF32 {
  static constexpr int kElements = 1;
  static inline void load(const std::byte* line, Vec* out) {
    std::memcpy(out[0].x, line, sizeof out[0].x);
  }
};
struct LineF16 {
  static constexpr int kElements = 2;
  static inline void load(const std::byte* line, Vec* out) {
    uint16_t h[32];
    std::memcpy(h, line, sizeof h);
    for (int i = 0; i < 16; ++i) out[0].x[i] = f16_to_f32(h[2 * i]);
    for (int i = 0; i < 16; ++i) out[1].x[i] = f16_to_f32(h[2 * i + 1]);
  }
};
struct LineBf16 {
  static constexpr int kElements = 2;
  static inline void load(const std::byte* line, Vec* out) {
    uint16_t h[32];
    std::memcpy(h, line, sizeof h);
    for (int i = 0; i < 16; ++i) out[0].x[i] = bf16_to_f32(h[2 * i]);
    for (int i = 0; i < 16; ++i) out[1].x[i] = bf16_to_f32(h[2 * i + 1]);
  }
};

// ---- integers, for packed tiles

struct Ints {
  uint32_t x[16];
};

inline Ints iload(const std::byte* p) {
  Ints v;
  std::memcpy(v.x, p, sizeof v.x);
  return v;
}
inline void istore(uint32_t* p, Ints v) { std::memcpy(p, v.x, sizeof v.x); }
inline Ints iset(uint32_t s) {
  Ints v;
  for (uint32_t& x : v.x) x = s;
  return v;
}
inline Ints iand(Ints a, Ints b) {
  for (int i = 0; i < 16; ++i) a.x[i] &= b.x[i];
  return a;
}
inline Ints ior(Ints a, Ints b) {
  for (int i = 0; i < 16; ++i) a.x[i] |= b.x[i];
  return a;
}
inline Ints ixor(Ints a, Ints b) {
  for (int i = 0; i < 16; ++i) a.x[i] ^= b.x[i];
  return a;
}
inline Ints isub(Ints a, Ints b) {
  for (int i = 0; i < 16; ++i) a.x[i] -= b.x[i];
  return a;
}
template <int kBits>
inline Ints shl(Ints a) {
  for (uint32_t& x : a.x) x <<= kBits;
  return a;
}
template <int kBits>
inline Ints shr(Ints a) {
  for (uint32_t& x : a.x) x >>= kBits;
  return a;
}
template <int kBits>
inline Ints sar(Ints a) {
  for (uint32_t& x : a.x) x = static_cast<uint32_t>(static_cast<int32_t>(x) >> kBits);
  return a;
}
// Bytes 0 and 2 (1 and 3) of each word as two signed 16-bit numbers.
inline uint32_t two_signed_bytes(uint32_t low, uint32_t high) {
  const auto a = static_cast<int16_t>(static_cast<int8_t>(low & 0xff));
  const auto b = static_cast<int16_t>(static_cast<int8_t>(high & 0xff));
  return static_cast<uint32_t>(static_cast<uint16_t>(a)) |
         static_cast<uint32_t>(static_cast<uint16_t>(b)) << 16;
}
inline Ints even_bytes(Ints a) {
  for (uint32_t& x : a.x) x = two_signed_bytes(x, x >> 16);
  return a;
}
inline Ints odd_bytes(Ints a) {
  for (uint32_t& x : a.x) x = two_signed_bytes(x >> 8, x >> 24);
  return a;
}
// sum + the products of both signed 16-bit halves, word by word.
inline Ints add_pairs(Ints a, Ints b, Ints sum) {
  for (int i = 0; i < 16; ++i) {
    const int32_t low = static_cast<int16_t>(a.x[i]) * static_cast<int16_t>(b.x[i]);
    const int32_t high = static_cast<int16_t>(a.x[i] >> 16) * static_cast<int16_t>(b.x[i] >> 16);
    sum.x[i] += static_cast<uint32_t>(low) + static_cast<uint32_t>(high);
  }
  return sum;
}
// The word at p in all lanes.
inline Ints ibroadcast(const float* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return iset(word);
}
// To nearest, ties to even; anything for NaN.
inline Ints to_ints(Vec a) {
  Ints v;
  for (int i = 0; i < 16; ++i) {
    const float x = std::nearbyint(a.x[i]);
    v.x[i] = std::abs(x) < 2147483648.0f ? static_cast<uint32_t>(static_cast<int32_t>(x)) : 0;
  }
  return v;
}
inline Vec to_float(Ints a) {
  Vec v;
  for (int i = 0; i < 16; ++i) v.x[i] = static_cast<float>(static_cast<int32_t>(a.x[i]));
  return v;
}
// 16 bytes that byte_lookup takes from.
inline Ints load_table(const int8_t* bytes) {
  Ints v;
  for (int i = 0; i < 4; ++i) std::memcpy(v.x + 4 * i, bytes, 16);
  return v;
}
// Each byte b of idx, below 16, becomes byte b of the table.
inline Ints byte_lookup(Ints idx, Ints table) {
  uint8_t b[64], t[64];
  std::memcpy(b, idx.x, sizeof b);
  std::memcpy(t, table.x, sizeof t);
  for (uint8_t& each : b) each = t[each % 16];
  std::memcpy(idx.x, b, sizeof b);
  return idx;
}
// Lane i of x - kBy lanes: x[i - kBy], or the last lanes of `before`.
template <int kBy>
inline Ints lanes_up(Ints x, Ints before) {
  Ints v;
  for (int i = 0; i < 16; ++i) v.x[i] = i < kBy ? before.x[16 - kBy + i] : x.x[i - kBy];
  return v;
}
inline Vec load_floats(const std::byte* p) {
  Vec v;
  std::memcpy(v.x, p, sizeof v.x);
  return v;
}
inline Vec load_halves(const std::byte* p) {
  uint16_t h[16];
  Vec v;
  std::memcpy(h, p, sizeof h);
  for (int i = 0; i < 16; ++i) v.x[i] = f16_to_f32(h[i]);
  return v;
}

#include "backend/cpu/attention_body.inl.h"

}  // namespace scalar

const AttendKernels kScalarKernels = {scalar::attend, scalar::merge, scalar::unpack};

}  // namespace kvik::cpu
