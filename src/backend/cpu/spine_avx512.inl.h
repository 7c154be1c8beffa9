// The AVX-512 vector type and its kernels. Included by spine_avx512.cc inside its region, and by a
// test that runs the same code through an emulation of these instructions on machines without them.

namespace kvik::cpu {
namespace avx512 {

struct Vec {
  __m512 v;
};

// 16 of 32 registers: the others hold four lines in two halves each and a broadcast.
constexpr int kAccumulators = 16;
// Query rows that a pass handles together.
constexpr int kRowsAtOnce = 4;

inline Vec vload(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void vstore(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
inline Vec vset(float s) { return {_mm512_set1_ps(s)}; }
inline Vec vadd(Vec x, Vec y) { return {_mm512_add_ps(x.v, y.v)}; }
inline Vec vsub(Vec x, Vec y) { return {_mm512_sub_ps(x.v, y.v)}; }
inline Vec vmul(Vec x, Vec y) { return {_mm512_mul_ps(x.v, y.v)}; }
inline Vec vdiv(Vec x, Vec y) { return {_mm512_div_ps(x.v, y.v)}; }
inline Vec vfma(Vec x, Vec y, Vec z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
// y where either is NaN.
inline Vec vmax(Vec x, Vec y) { return {_mm512_max_ps(x.v, y.v)}; }
inline Vec vmin(Vec x, Vec y) { return {_mm512_min_ps(x.v, y.v)}; }
inline Vec vabs(Vec x) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7fffffff)))};
}
inline Vec vcopysign(Vec magnitude, Vec s) {
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  return {_mm512_castsi512_ps(
      _mm512_or_si512(_mm512_andnot_si512(sign, _mm512_castps_si512(magnitude.v)),
                      _mm512_and_si512(sign, _mm512_castps_si512(s.v))))};
}
inline bool any_greater(Vec x, Vec y) { return _mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ) != 0; }
// yes where x < y, else no (no where either is NaN).
inline Vec select_less(Vec x, Vec y, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), no.v, yes.v)};
}
inline Vec select_nan(Vec x, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), no.v, yes.v)};
}
// Lanes outside [lo, hi) become `other`. Requires: 0 <= lo <= hi <= 16.
inline Vec keep_lanes(Vec x, int lo, int hi, float other) {
  const auto keep = static_cast<__mmask16>((1u << hi) - (1u << lo));
  return {_mm512_mask_blend_ps(keep, _mm512_set1_ps(other), x.v)};
}
// x * 2^n, n held in the low bits of `biased` = n + 1.5 * 2^23.
inline Vec scale_by_power(Vec x, Vec biased) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(biased.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.v), n))};
}
inline __m256 upper_half(__m512 x) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
}
// Lanes (i, i+8), then (i, i+4), (i, i+2), (i, i+1).
inline float reduce_add(Vec x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), upper_half(x.v));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(Vec x) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.v), upper_half(x.v));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline void prefetch(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

struct LineF32 {
  static constexpr int kElements = 1;
  static inline void load(const std::byte* line, Vec* out) {
    out[0] = {_mm512_castsi512_ps(_mm512_load_si512(line))};
  }
};
struct LineF16 {
  static constexpr int kElements = 2;
  static inline void load(const std::byte* line, Vec* out) {
    const __m512i words = _mm512_load_si512(line);
    out[0] = {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))};
    out[1] = {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16)))};
  }
};
struct LineBf16 {
  static constexpr int kElements = 2;
  static inline void load(const std::byte* line, Vec* out) {
    const __m512i words = _mm512_load_si512(line);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    out[0] = {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))};
    out[1] = {_mm512_castsi512_ps(_mm512_and_si512(words, upper))};
  }
};

// ---- integers, for packed tiles

struct Ints {
  __m512i v;
};

// Packed tiles begin at half lines.
inline Ints iload(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
inline void istore(uint32_t* p, Ints x) { _mm512_storeu_si512(p, x.v); }
inline Ints iset(uint32_t s) { return {_mm512_set1_epi32(static_cast<int>(s))}; }
inline Ints iand(Ints x, Ints y) { return {_mm512_and_si512(x.v, y.v)}; }
inline Ints ior(Ints x, Ints y) { return {_mm512_or_si512(x.v, y.v)}; }
inline Ints ixor(Ints x, Ints y) { return {_mm512_xor_si512(x.v, y.v)}; }
inline Ints isub(Ints x, Ints y) { return {_mm512_sub_epi32(x.v, y.v)}; }
template <int kBits>
inline Ints shl(Ints x) {
  return {_mm512_slli_epi32(x.v, kBits)};
}
template <int kBits>
inline Ints shr(Ints x) {
  return {_mm512_srli_epi32(x.v, kBits)};
}
template <int kBits>
inline Ints sar(Ints x) {
  return {_mm512_srai_epi32(x.v, kBits)};
}
// Bytes 0 and 2 (1 and 3) of each word as two signed 16-bit numbers.
inline Ints even_bytes(Ints x) { return {_mm512_srai_epi16(_mm512_slli_epi16(x.v, 8), 8)}; }
inline Ints odd_bytes(Ints x) { return {_mm512_srai_epi16(x.v, 8)}; }
// sum + the products of both signed 16-bit halves, word by word.
inline Ints add_pairs(Ints x, Ints y, Ints sum) {
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(x.v, y.v))};
}
// The word at p in all lanes.
inline Ints ibroadcast(const float* p) { return {_mm512_castps_si512(_mm512_set1_ps(*p))}; }
// To nearest, ties to even; anything for NaN.
inline Ints to_ints(Vec x) { return {_mm512_cvtps_epi32(x.v)}; }
inline Vec to_float(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }
// 16 bytes that byte_lookup takes from.
inline Ints load_table(const int8_t* bytes) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)))};
}
// Each byte b of idx, below 16, becomes byte b of the table.
inline Ints byte_lookup(Ints idx, Ints table) { return {_mm512_shuffle_epi8(table.v, idx.v)}; }
// Lane i of x - kBy lanes: x[i - kBy], or the last lanes of `before`.
template <int kBy>
inline Ints lanes_up(Ints x, Ints before) {
  return {_mm512_alignr_epi32(x.v, before.v, 16 - kBy)};
}
inline Vec load_floats(const std::byte* p) { return {_mm512_castsi512_ps(iload(p).v)}; }
inline Vec load_halves(const std::byte* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

#include "backend/cpu/attention_body.inl.h"

}  // namespace avx512

const AttendKernels kAvx512Kernels = {avx512::attend, avx512::merge, avx512::unpack};

}  // namespace kvik::cpu
