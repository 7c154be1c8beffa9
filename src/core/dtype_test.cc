#include "kvik/core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "kvik/core/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvik {
namespace {

constexpr int kNumCodes = 1 << 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }
float from_bits(uint32_t u) { return std::bit_cast<float>(u); }

// The value of a binary16 code by the definition of the format.
double f16_by_definition(int code) {
  const int exponent = (code >> 10) & 0x1f;
  const int mantissa = code & 0x3ff;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24)
                           : exponent == 31
                               ? (mantissa == 0 ? std::numeric_limits<double>::infinity()
                                                : std::numeric_limits<double>::quiet_NaN())
                               : std::ldexp(1024 + mantissa, exponent - 25);
  return (code & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(DType, HasASizeAndAName) {
  EXPECT_EQ(dtype_bytes(DType::f32), 4);
  EXPECT_EQ(dtype_bytes(DType::f16), 2);
  EXPECT_EQ(dtype_bytes(DType::bf16), 2);
  EXPECT_EQ(dtype_name(DType::f32), "f32");
  EXPECT_EQ(dtype_name(DType::f16), "f16");
  EXPECT_EQ(dtype_name(DType::bf16), "bf16");
}

TEST(F16, EveryCodeHasTheValueOfTheFormat) {
  for (int code = 0; code < kNumCodes; ++code) {
    const float x = f16_to_f32(static_cast<f16_bits>(code));
    const double expected = f16_by_definition(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(x)) << code;
    } else {
      EXPECT_EQ(static_cast<double>(x), expected) << code;
      EXPECT_EQ(std::signbit(x), (code & 0x8000) != 0) << code;
    }
  }
}

TEST(F16, EveryCodeComesBackAndNaNsComeBackQuiet) {
  for (int code = 0; code < kNumCodes; ++code) {
    const auto back = f32_to_f16(f16_to_f32(static_cast<f16_bits>(code)));
    const int expected = (code & 0x7fff) > 0x7c00 ? code | 0x0200 : code;
    EXPECT_EQ(back, expected) << code;
  }
}

// Halfway between two neighbours the even code wins; one f32 step to either side the nearer one
// does.
TEST(F16, EveryTieGoesToTheEvenCode) {
  for (int code = 0; code < 0x7bff; ++code) {
    const double low = f16_by_definition(code);
    const double high = f16_by_definition(code + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(f32_to_f16(middle), even) << code;
    EXPECT_EQ(f32_to_f16(-middle), even | 0x8000) << code;
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, kInfinity)), code + 1);
  }
}

TEST(F16, OverflowsToInfinityFromHalfAStepAboveItsLargestValue) {
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-65520.0f), 0xfc00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(f32_to_f16(kInfinity), 0x7c00);
  EXPECT_EQ(f32_to_f16(-kInfinity), 0xfc00);
}

TEST(F16, UnderflowsToSignedZeroBelowHalfItsSmallestDenormal) {
  EXPECT_EQ(f32_to_f16(0x1p-24f), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);
  EXPECT_EQ(f32_to_f16(-0x1p-25f), 0x8000);
  EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) void hardware_f16(const float* x, f16_bits* y) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(y),
                   _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
}
__attribute__((target("avx,f16c"))) float hardware_f32(f16_bits code) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(code)));
}

// Counts the f32 bit patterns first, first + step, ... on which hardware and library differ.
int64_t count_differences(uint64_t first, uint64_t step) {
  int64_t differences = 0;
  for (uint64_t u = first; u <= 0xffffffffu; u += 8 * step) {
    float x[8];
    f16_bits y[8];
    for (uint64_t i = 0; i < 8; ++i) x[i] = from_bits(static_cast<uint32_t>(u + i * step));
    hardware_f16(x, y);
    for (int i = 0; i < 8; ++i) differences += f32_to_f16(x[i]) != y[i];
  }
  return differences;
}

TEST(F16, AgreesWithTheProcessorOnAFineGridOfAllFloats) {
  if (!detect_cpu_features().f16c) GTEST_SKIP() << "no F16C here";
  // A prime step visits every exponent, sign and low mantissa pattern: about 22 million values.
  EXPECT_EQ(count_differences(0, 199), 0);
}

TEST(F16, AgreesWithTheProcessorAroundEveryTieAndOnEveryCode) {
  if (!detect_cpu_features().f16c) GTEST_SKIP() << "no F16C here";
  // Around each multiple of 2^12 in the bit pattern lie all ties of normal results (13 bits are
  // cut).
  for (int offset = -2; offset <= 2; ++offset) {
    EXPECT_EQ(count_differences(static_cast<uint64_t>(4096 + offset), 1 << 12), 0);
  }
  for (int code = 0; code < kNumCodes; ++code) {
    EXPECT_EQ(bits(f16_to_f32(static_cast<f16_bits>(code))),
              bits(hardware_f32(static_cast<f16_bits>(code))))
        << code;
  }
}
#endif

TEST(BF16, EveryCodeIsTheUpperHalfOfAFloat) {
  for (int code = 0; code < kNumCodes; ++code) {
    EXPECT_EQ(bits(bf16_to_f32(static_cast<bf16_bits>(code))), static_cast<uint32_t>(code) << 16);
  }
}

TEST(BF16, EveryCodeComesBackAndEveryNaNBecomesOne) {
  for (int code = 0; code < kNumCodes; ++code) {
    const auto back = f32_to_bf16(bf16_to_f32(static_cast<bf16_bits>(code)));
    EXPECT_EQ(back, (code & 0x7fff) > 0x7f80 ? 0x7fc0 : code) << code;
  }
}

TEST(BF16, EveryTieGoesToTheEvenCode) {
  for (int code = 0; code < 0x7f80; ++code) {
    const uint32_t middle = (static_cast<uint32_t>(code) << 16) | 0x8000u;
    const int even = code % 2 == 0 ? code : code + 1;  // past the largest value lies infinity
    EXPECT_EQ(f32_to_bf16(from_bits(middle)), even) << code;
    EXPECT_EQ(f32_to_bf16(from_bits(middle | 0x80000000u)), even | 0x8000) << code;
    EXPECT_EQ(f32_to_bf16(from_bits(middle - 1)), code);
    EXPECT_EQ(f32_to_bf16(from_bits(middle + 1)), code + 1);
  }
}

TEST(BF16, ANaNInTheLowerHalfDoesNotBecomeInfinity) {
  EXPECT_EQ(f32_to_bf16(from_bits(0x7f800001u)), 0x7fc0);
  EXPECT_EQ(f32_to_bf16(from_bits(0xffffffffu)), 0x7fc0);
}

TEST(BF16, KeepsDenormalsAndTheirSign) {
  EXPECT_EQ(f32_to_bf16(from_bits(0x00010000u)), 0x0001);
  EXPECT_EQ(f32_to_bf16(from_bits(0x80010000u)), 0x8001);
  EXPECT_EQ(f32_to_bf16(from_bits(0x00008000u)), 0x0000);
  EXPECT_EQ(f32_to_bf16(from_bits(0x80000001u)), 0x8000);
  EXPECT_EQ(f32_to_bf16(from_bits(0x00008001u)), 0x0001);
}

TEST(BF16, IsTheNearestCodeOfRandomFloats) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000000; ++i) {
    const float x = from_bits(static_cast<uint32_t>(random()));
    if (!std::isfinite(x)) continue;
    const bf16_bits code = f32_to_bf16(x);
    const auto distance = [x](int candidate) {
      return std::fabs(static_cast<double>(bf16_to_f32(static_cast<bf16_bits>(candidate))) -
                       static_cast<double>(x));
    };
    if ((code & 0x7fff) == 0x7f80) continue;  // rounded past the largest value
    const double error = distance(code);
    if ((code & 0x7fff) != 0x7f7f) {
      ASSERT_LE(error, distance(code + 1)) << x;
    }
    if ((code & 0x7fff) != 0) {
      ASSERT_LE(error, distance(code - 1)) << x;
    }
  }
}

}  // namespace
}  // namespace kvik
