// The exponential with the same bits on every machine.
#pragma once

namespace kvik::internal {

// e^x for x <= 0, from additions, multiplications and powers of two alone (no libm, whose last bits
// differ between versions). Relative error below 4e-16; 0 below x = -708. Requires: not NaN.
double exact_exp(double x);

}  // namespace kvik::internal
