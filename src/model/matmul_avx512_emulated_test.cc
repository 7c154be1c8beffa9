// Runs the AVX-512 kernels on any processor, with SIMDe standing in for the instructions, so that
// their logic is tested where the hardware is absent. Needs libsimde-dev; empty without it.
#if __has_include(<simde/x86/avx512.h>)

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <gtest/gtest.h>
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kvik/core/checked_math.h"
#include "model/blocks_32.h"
#include "model/blocks_k.h"
#include "model/blocks_plain.h"
#include "model/matmul_kernels.h"
#include "model/matmul_test_util.h"

namespace kvik::internal {
namespace {

// What SIMDe 0.7.4 lacks, lane by lane.
template <class To, class Wide, class Narrow>
Wide convert_lanes(Narrow from, To (*convert)(const unsigned char*), size_t lane_bytes) {
  unsigned char in[sizeof from];
  std::memcpy(in, &from, sizeof from);
  To out[16];
  for (size_t i = 0; i < 16; ++i) out[i] = convert(in + i * lane_bytes);
  Wide wide;
  static_assert(sizeof wide == sizeof out);
  std::memcpy(&wide, out, sizeof wide);
  return wide;
}
template <class T>
T lane_at(const unsigned char* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
int32_t from_u8(const unsigned char* p) { return *p; }
int32_t from_i8(const unsigned char* p) { return lane_at<int8_t>(p); }
int32_t from_u16(const unsigned char* p) { return lane_at<uint16_t>(p); }
float from_i32(const unsigned char* p) { return static_cast<float>(lane_at<int32_t>(p)); }
float from_f16(const unsigned char* p) { return f16_to_f32(lane_at<uint16_t>(p)); }

// SIMDe rounds twice where the processor has no fma of its own.
__m512 fused(__m512 a, __m512 b, __m512 c) {
  float x[16], y[16], z[16];
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  std::memcpy(z, &c, sizeof z);
  for (int i = 0; i < 16; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  std::memcpy(&c, z, sizeof z);
  return c;
}

#define __mmask16 simde__mmask16
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps(a, b, c) fused(a, b, c)
#define _mm512_cvtepu8_epi32(v) (convert_lanes<int32_t, __m512i>(v, from_u8, 1))
#define _mm512_cvtepi8_epi32(v) (convert_lanes<int32_t, __m512i>(v, from_i8, 1))
#define _mm512_cvtepu16_epi32(v) (convert_lanes<int32_t, __m512i>(v, from_u16, 2))
#define _mm512_cvtepi32_ps(v) (convert_lanes<float, __m512>(v, from_i32, 4))
#define _mm512_cvtph_ps(v) (convert_lanes<float, __m512>(v, from_f16, 2))

#include "model/simd_x86.inc"

#include "model/simd_avx512.inc"

#include "model/matmul_body.inc"

using kvik::testing::products_by_rule;
using kvik::testing::random_floats;
using kvik::testing::RandomWeight;
using kvik::testing::same_bits;

class EmulatedAvx512 : public ::testing::TestWithParam<int> {
 protected:
  // Products of a random weight and the rule's, for a vector or a batch.
  void compare(int64_t rows, int64_t cols, int64_t num_x_rows) const {
    const auto type = static_cast<WeightType>(GetParam());
    const FormatKernels& kernels = kKernels[static_cast<size_t>(GetParam())];
    const RandomWeight w(type, rows, cols, static_cast<uint32_t>(rows + cols));
    const std::vector<float> x = random_floats(cols * num_x_rows, 7);
    std::vector<float> y(static_cast<size_t>(rows * num_x_rows));
    std::vector<float> scratch(static_cast<size_t>(scratch_floats(cols)));
    if (num_x_rows == 1) {
      kernels.vector(w.weight, {0, rows}, x.data(), y.data());
    } else {
      kernels.matrix(w.weight, {0, rows}, x.data(), cols, num_x_rows, y.data(), rows,
                     scratch.data());
    }
    EXPECT_TRUE(same_bits(y, products_by_rule(w.weight, x, num_x_rows)))
        << rows << " x " << cols << ", " << num_x_rows << " rows of x";
  }
};

TEST_P(EmulatedAvx512, ProductsFollowTheRuleBitForBit) {
  const int64_t block = weight_block_values(static_cast<WeightType>(GetParam()));
  for (const int64_t rows : {1, 4, 7, 9}) {
    for (const int64_t n : {1, 2, 5, 6, 7, 13}) {
      compare(rows, block == 256 ? 512 : 96, n);
      if (block == 1) compare(rows, 37, n);
    }
  }
}

TEST_P(EmulatedAvx512, LongRowsAreCutIntoChunksWithoutChangingTheSums) {
  compare(9, 1536, 1);
  compare(9, 1536, 31);
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedAvx512, ::testing::Range(0, kNumWeightTypes),
                         [](const auto& i) {
                           return std::string(weight_type_name(static_cast<WeightType>(i.param)));
                         });

}  // namespace
}  // namespace kvik::internal

#endif
