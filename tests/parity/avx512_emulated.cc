// The AVX-512 kernels, compiled from the same source as the library's, with each AVX-512
// instruction replaced by SIMDe's emulation of it: their logic is tested on machines that lack
// them. This file alone is compiled for AVX2, FMA and F16C (SIMDe fuses multiply-add only then);
// callers check the processor first.
#include <simde/x86/avx512.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/attend_task.h"
#include "format/hadamard.h"
#include "format/level_tables.h"
#include "format/lloyd_max.h"
#include "format/packed_tile.h"
#include "kvik/core/dtype.h"

namespace kvik::test {
namespace {

// What SIMDe 0.7.4 lacks.
inline __m256i convert_words(simde__m512i x) {
  alignas(64) int32_t words[16];
  alignas(32) int16_t halves[16];
  simde_mm512_store_si512(words, x);
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<int16_t>(words[i]);
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(halves));
}
inline simde__m512 convert_halves(__m256i halves) {
  alignas(64) float x[16];
  _mm256_store_ps(x, _mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
  _mm256_store_ps(x + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
  return simde_mm512_loadu_ps(x);
}

inline simde__m512 convert_ints(simde__m512i x) {
  alignas(64) int32_t words[16];
  alignas(64) float values[16];
  simde_mm512_store_si512(words, x);
  for (int i = 0; i < 16; ++i) values[i] = static_cast<float>(words[i]);
  return simde_mm512_loadu_ps(values);
}
inline simde__m512i shift_right_signed(simde__m512i x, int count) {
  alignas(64) int32_t words[16];
  simde_mm512_store_si512(words, x);
  for (int32_t& word : words) word >>= count;
  return simde_mm512_load_si512(words);
}
inline simde__m512i to_nearest(simde__m512 x) {
  alignas(64) float values[16];
  alignas(64) int32_t words[16];
  simde_mm512_storeu_ps(values, x);
  for (int i = 0; i < 16; ++i) words[i] = _mm_cvtss_si32(_mm_set_ss(values[i]));
  return simde_mm512_load_si512(words);
}
inline simde__m512i shift_halves(simde__m512i x, int left, int right) {
  alignas(64) int16_t halves[32];
  simde_mm512_store_si512(halves, x);
  for (int16_t& half : halves) {
    half = static_cast<int16_t>(static_cast<int16_t>(static_cast<uint16_t>(half) << left) >> right);
  }
  return simde_mm512_load_si512(halves);
}
inline simde__m512i multiply_add_halves(simde__m512i x, simde__m512i y) {
  alignas(64) int16_t a[32], b[32];
  alignas(64) int32_t words[16];
  simde_mm512_store_si512(a, x);
  simde_mm512_store_si512(b, y);
  for (int i = 0; i < 16; ++i) words[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
  return simde_mm512_load_si512(words);
}
inline simde__m512i align_words(simde__m512i high, simde__m512i low, int count) {
  alignas(64) int32_t words[32];
  simde_mm512_store_si512(words, low);
  simde_mm512_store_si512(words + 16, high);
  return simde_mm512_loadu_si512(words + count);
}

}  // namespace
}  // namespace kvik::test

#define __m512 simde__m512
#define _mm512_cvtps_epi32 kvik::test::to_nearest
#define _mm512_slli_epi16(x, count) kvik::test::shift_halves(x, count, 0)
#define _mm512_srai_epi16(x, count) kvik::test::shift_halves(x, 0, count)
#define _mm512_madd_epi16 kvik::test::multiply_add_halves
#define _mm512_alignr_epi32 kvik::test::align_words
#define _mm512_broadcast_i32x4 simde_mm512_broadcast_i32x4
#define _mm512_cvtepi32_ps kvik::test::convert_ints
#define _mm512_loadu_si512 simde_mm512_loadu_si512
#define _mm512_shuffle_epi8 simde_mm512_shuffle_epi8
#define _mm512_srai_epi32 kvik::test::shift_right_signed
#define _mm512_storeu_si512 simde_mm512_storeu_si512
#define _mm512_sub_epi32 simde_mm512_sub_epi32
#define _mm512_xor_si512 simde_mm512_xor_si512
#define __m512i simde__m512i
#define _mm512_add_epi32 simde_mm512_add_epi32
#define _mm512_add_ps simde_mm512_add_ps
#define _mm512_and_si512 simde_mm512_and_si512
#define _mm512_andnot_si512 simde_mm512_andnot_si512
#define _mm512_castps512_ps256 simde_mm512_castps512_ps256
#define _mm512_castps_pd simde_mm512_castps_pd
#define _mm512_castps_si512 simde_mm512_castps_si512
#define _mm512_castsi512_ps simde_mm512_castsi512_ps
#define _mm512_cmp_ps_mask simde_mm512_cmp_ps_mask
#define _mm512_cvtepi32_epi16 kvik::test::convert_words
#define _mm512_cvtph_ps kvik::test::convert_halves
#define _mm512_div_ps simde_mm512_div_ps
#define _mm512_extractf64x4_pd simde_mm512_extractf64x4_pd
#define _mm512_fmadd_ps simde_mm512_fmadd_ps
#define _mm512_load_si512 simde_mm512_load_si512
#define _mm512_loadu_ps simde_mm512_loadu_ps
#define _mm512_mask_blend_ps simde_mm512_mask_blend_ps
#define _mm512_max_ps simde_mm512_max_ps
#define _mm512_min_ps simde_mm512_min_ps
#define _mm512_mul_ps simde_mm512_mul_ps
#define _mm512_or_si512 simde_mm512_or_si512
#define _mm512_set1_epi32 simde_mm512_set1_epi32
#define _mm512_set1_ps simde_mm512_set1_ps
#define _mm512_slli_epi32 simde_mm512_slli_epi32
#define _mm512_srli_epi32 simde_mm512_srli_epi32
#define _mm512_storeu_ps simde_mm512_storeu_ps
#define _mm512_sub_ps simde_mm512_sub_ps
#define avx512 avx512_emulated
#define kAvx512Kernels kEmulatedAvx512Kernels
namespace kvik::cpu {
extern const AttendKernels kEmulatedAvx512Kernels;
}
#include "backend/cpu/spine_avx512.inl.h"
