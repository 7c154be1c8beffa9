#include "model/exact_exp.h"

#include <bit>
#include <cstdint>

namespace kvik::internal {

double exact_exp(double x) {
  if (x < -708.0) return 0.0;
  // x = n ln 2 + r with |r| <= ln 2 / 2. ln 2 in two parts: n times the first is exact.
  constexpr double kLog2E = 0x1.71547652b82fep0;
  constexpr double kLn2High = 0x1.62e42fee00000p-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const auto n = static_cast<int64_t>(x * kLog2E - 0.5);  // x <= 0: rounds to nearest
  const auto scale = static_cast<double>(n);
  const double r = (x - scale * kLn2High) - scale * kLn2Low;
  // Taylor's series: the first term left out is below 2^-57.
  constexpr double kInverseFactorials[] = {1.0,
                                           1.0,
                                           1.0 / 2,
                                           1.0 / 6,
                                           1.0 / 24,
                                           1.0 / 120,
                                           1.0 / 720,
                                           1.0 / 5040,
                                           1.0 / 40320,
                                           1.0 / 362880,
                                           1.0 / 3628800,
                                           1.0 / 39916800,
                                           1.0 / 479001600,
                                           1.0 / 6227020800.0};
  double sum = 0.0;
  for (int i = 13; i >= 0; --i) sum = sum * r + kInverseFactorials[i];
  return sum * std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

}  // namespace kvik::internal
