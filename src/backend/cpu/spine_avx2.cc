// The kernels for AVX2 with FMA and F16C: 16 lanes as two registers.
#ifdef KVIK_HAVE_SPINE_AVX2
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "backend/cpu/attend_task.h"
#include "core/isa_region.h"
#include "format/hadamard.h"
#include "format/level_tables.h"
#include "format/lloyd_max.h"
#include "format/packed_tile.h"
#include "kvik/core/dtype.h"

KVIK_ISA_BEGIN("avx2,fma,f16c")
namespace kvik::cpu {
namespace avx2 {

struct Vec {
  __m256 a, b;
};

// 8 of 16 registers: the others hold a line, its halves and a broadcast.
constexpr int kAccumulators = 4;
// Query rows that a pass handles together.
constexpr int kRowsAtOnce = 4;

inline Vec vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void vstore(float* p, Vec v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}
inline Vec vset(float s) { return {_mm256_set1_ps(s), _mm256_set1_ps(s)}; }
inline Vec vadd(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec vsub(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec vmul(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec vdiv(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Vec vfma(Vec x, Vec y, Vec z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
// y where either is NaN.
inline Vec vmax(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Vec vmin(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Vec vabs(Vec x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline Vec vcopysign(Vec magnitude, Vec s) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, magnitude.a), _mm256_and_ps(sign, s.a)),
          _mm256_or_ps(_mm256_andnot_ps(sign, magnitude.b), _mm256_and_ps(sign, s.b))};
}
inline bool any_greater(Vec x, Vec y) {
  const __m256 a = _mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ);
  const __m256 b = _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ);
  return _mm256_movemask_ps(_mm256_or_ps(a, b)) != 0;
}
// yes where x < y, else no (no where either is NaN).
inline Vec select_less(Vec x, Vec y, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
inline Vec select_nan(Vec x, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))};
}
// Lanes outside [lo, hi) become `other`.
inline Vec keep_lanes(Vec x, int lo, int hi, float other) {
  const __m256i below = _mm256_set1_epi32(lo - 1);
  const __m256i end = _mm256_set1_epi32(hi);
  const __m256i lane_a = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i lane_b = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
  const __m256i keep_a =
      _mm256_and_si256(_mm256_cmpgt_epi32(lane_a, below), _mm256_cmpgt_epi32(end, lane_a));
  const __m256i keep_b =
      _mm256_and_si256(_mm256_cmpgt_epi32(lane_b, below), _mm256_cmpgt_epi32(end, lane_b));
  const __m256 o = _mm256_set1_ps(other);
  return {_mm256_blendv_ps(o, x.a, _mm256_castsi256_ps(keep_a)),
          _mm256_blendv_ps(o, x.b, _mm256_castsi256_ps(keep_b))};
}
// x * 2^n, n held in the low bits of `biased` = n + 1.5 * 2^23.
inline Vec scale_by_power(Vec x, Vec biased) {
  const __m256i a = _mm256_slli_epi32(_mm256_castps_si256(biased.a), 23);
  const __m256i b = _mm256_slli_epi32(_mm256_castps_si256(biased.b), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.a), a)),
          _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.b), b))};
}
// Lanes (i, i+8), then (i, i+4), (i, i+2), (i, i+1).
inline float reduce_add(Vec x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(Vec x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline void prefetch(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

inline __m256i load_half_line(const std::byte* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

struct LineF32 {
  static constexpr int kElements = 1;
  static inline void load(const std::byte* line, Vec* out) {
    out[0] = {_mm256_castsi256_ps(load_half_line(line)),
              _mm256_castsi256_ps(load_half_line(line + 32))};
  }
};
struct LineF16 {
  static constexpr int kElements = 2;
  // Eight words of two halves: the lower halves, then the upper halves, as one register.
  static inline __m256i split(__m256i words) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(words, order), 0xd8);
  }
  static inline void load(const std::byte* line, Vec* out) {
    const __m256i a = split(load_half_line(line));
    const __m256i b = split(load_half_line(line + 32));
    out[0] = {_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
              _mm256_cvtph_ps(_mm256_castsi256_si128(b))};
    out[1] = {_mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)),
              _mm256_cvtph_ps(_mm256_extracti128_si256(b, 1))};
  }
};
struct LineBf16 {
  static constexpr int kElements = 2;
  static inline void load(const std::byte* line, Vec* out) {
    const __m256i a = load_half_line(line);
    const __m256i b = load_half_line(line + 32);
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    out[0] = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
              _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
    out[1] = {_mm256_castsi256_ps(_mm256_and_si256(a, upper)),
              _mm256_castsi256_ps(_mm256_and_si256(b, upper))};
  }
};

// ---- integers, for packed tiles

struct Ints {
  __m256i a, b;  // lanes 0..7, 8..15
};

inline Ints iload(const std::byte* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline void istore(uint32_t* p, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
inline Ints iset(uint32_t s) {
  const __m256i x = _mm256_set1_epi32(static_cast<int>(s));
  return {x, x};
}
inline Ints iand(Ints x, Ints y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
inline Ints ior(Ints x, Ints y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline Ints ixor(Ints x, Ints y) {
  return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
}
inline Ints isub(Ints x, Ints y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
template <int kBits>
inline Ints shl(Ints x) {
  return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)};
}
template <int kBits>
inline Ints shr(Ints x) {
  return {_mm256_srli_epi32(x.a, kBits), _mm256_srli_epi32(x.b, kBits)};
}
template <int kBits>
inline Ints sar(Ints x) {
  return {_mm256_srai_epi32(x.a, kBits), _mm256_srai_epi32(x.b, kBits)};
}
// Bytes 0 and 2 (1 and 3) of each word as two signed 16-bit numbers.
inline Ints even_bytes(Ints x) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(x.a, 8), 8),
          _mm256_srai_epi16(_mm256_slli_epi16(x.b, 8), 8)};
}
inline Ints odd_bytes(Ints x) { return {_mm256_srai_epi16(x.a, 8), _mm256_srai_epi16(x.b, 8)}; }
// sum + the products of both signed 16-bit halves, word by word.
inline Ints add_pairs(Ints x, Ints y, Ints sum) {
  return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(x.a, y.a)),
          _mm256_add_epi32(sum.b, _mm256_madd_epi16(x.b, y.b))};
}
// The word at p in all lanes.
inline Ints ibroadcast(const float* p) {
  const __m256i x = _mm256_castps_si256(_mm256_broadcast_ss(p));
  return {x, x};
}
// To nearest, ties to even; anything for NaN.
inline Ints to_ints(Vec x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline Vec to_float(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
// 16 bytes that byte_lookup takes from.
inline Ints load_table(const int8_t* bytes) {
  const __m256i t =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  return {t, t};
}
// Each byte b of idx, below 16, becomes byte b of the table.
inline Ints byte_lookup(Ints idx, Ints table) {
  return {_mm256_shuffle_epi8(table.a, idx.a), _mm256_shuffle_epi8(table.a, idx.b)};
}
// Lane i of x - kBy lanes: x[i - kBy], or the last lanes of `before`.
template <int kBy>
inline Ints lanes_up(Ints x, Ints before) {
  const __m256i low = _mm256_permute2x128_si256(before.b, x.a, 0x21);
  const __m256i high = _mm256_permute2x128_si256(x.a, x.b, 0x21);
  return {_mm256_alignr_epi8(x.a, low, 16 - 4 * kBy), _mm256_alignr_epi8(x.b, high, 16 - 4 * kBy)};
}
inline Vec load_floats(const std::byte* p) {
  const Ints x = iload(p);
  return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
inline Vec load_halves(const std::byte* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}

#include "backend/cpu/attention_body.inl.h"

}  // namespace avx2

const AttendKernels kAvx2Kernels = {avx2::attend, avx2::merge, avx2::unpack};

}  // namespace kvik::cpu
KVIK_ISA_END
#endif  // KVIK_HAVE_SPINE_AVX2
