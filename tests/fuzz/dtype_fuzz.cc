// Conversions between f32 and the 16-bit types against their definition, computed in double.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kvik/core/check.h"
#include "kvik/core/dtype.h"

namespace {

// The 16-bit format with these many mantissa bits and this exponent of its smallest normal number.
struct Layout {
  int mantissa_bits;
  int min_exponent;
};
constexpr Layout kF16 = {10, -14};
constexpr Layout kBf16 = {7, -126};

// The value that a code without sign stands for, infinity's code read as the next power of two.
double decode_magnitude(Layout layout, int code) {
  const int field = code >> layout.mantissa_bits;
  const int mantissa = code & ((1 << layout.mantissa_bits) - 1);
  const int exponent = std::max(field - 1, 0) + layout.min_exponent;
  const double significand =
      (field > 0 ? 1.0 : 0.0) + std::ldexp(static_cast<double>(mantissa), -layout.mantissa_bits);
  return std::ldexp(significand, exponent);
}

int infinity_code(Layout layout) { return 0x7fff >> layout.mantissa_bits << layout.mantissa_bits; }

// Nearest code by bisection over the increasing values; of two equally near ones the even one.
int encode_magnitude(Layout layout, double magnitude) {
  int below = 0;
  int above = infinity_code(layout);
  if (magnitude >= decode_magnitude(layout, above)) return above;
  while (above - below > 1) {
    const int middle = (below + above) / 2;
    (decode_magnitude(layout, middle) <= magnitude ? below : above) = middle;
  }
  const double down = magnitude - decode_magnitude(layout, below);
  const double up = decode_magnitude(layout, above) - magnitude;
  if (down != up) return down < up ? below : above;
  return below % 2 == 0 ? below : above;
}

void check_encode(Layout layout, float x, uint16_t code) {
  const int magnitude = code & 0x7fff;
  if (std::isnan(x)) {
    KVIK_CHECK(magnitude > infinity_code(layout), "a NaN must stay a NaN");
    return;
  }
  KVIK_CHECK(std::signbit(x) == ((code & 0x8000) != 0), "the sign must be kept");
  KVIK_CHECK(magnitude == encode_magnitude(layout, std::fabs(static_cast<double>(x))),
             "must be the nearest value, ties to even");
}

void check_decode(Layout layout, uint16_t code, float x) {
  const int magnitude = code & 0x7fff;
  if (magnitude > infinity_code(layout)) {
    KVIK_CHECK(std::isnan(x), "a NaN must stay a NaN");
    return;
  }
  KVIK_CHECK(std::signbit(x) == ((code & 0x8000) != 0), "the sign must be kept");
  const double expected = magnitude == infinity_code(layout)
                              ? std::numeric_limits<double>::infinity()
                              : decode_magnitude(layout, magnitude);
  KVIK_CHECK(std::fabs(static_cast<double>(x)) == expected, "must be the code's value");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (size_t i = 0; i + sizeof(uint32_t) <= size; i += sizeof(uint32_t)) {
    uint32_t word = 0;
    std::memcpy(&word, data + i, sizeof word);
    const auto x = std::bit_cast<float>(word);
    check_encode(kF16, x, kvik::f32_to_f16(x));
    check_encode(kBf16, x, kvik::f32_to_bf16(x));
    const auto code = static_cast<uint16_t>(word >> 16);
    check_decode(kF16, code, kvik::f16_to_f32(code));
    check_decode(kBf16, code, kvik::bf16_to_f32(code));
  }
  return 0;
}
