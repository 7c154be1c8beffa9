// One reading of numbers for every option, every variable and every list: decimal, whole, exact.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string_view>

#include "kvik/core/status.h"

namespace kvik::cli {

// Digits with an optional minus; zeros before them count for nothing, so 010 is ten. Errors:
// invalid_argument for anything else (a plus, a prefix like 0x, what follows the digits) and for a
// number outside low to high.
Result<int64_t> parse_integer(std::string_view text, int64_t low, int64_t high);
// Digits with an optional minus, point and exponent (0.8, .5, 1e-3). Errors: invalid_argument for
// anything else (nan, inf, hexadecimal), for a number outside low to high, and for one so small
// that a float would take it as 0.
Result<double> parse_real(std::string_view text, double low, double high);
// "8GiB", "512 MB", "1.5g", "1e9": bytes, rounded down to whole ones. K, M, G, T and KiB, MiB, GiB,
// TiB count by 1024, KB, MB, GB and TB by 1000, in any case. Errors: invalid_argument for anything
// else, for less than 1 and for 2^63 and more.
Result<int64_t> parse_bytes(std::string_view text);

// Validators that check a value and put plain digits in its place, for the parser to convert.
CLI::Validator integer_in(int64_t low, int64_t high);
CLI::Validator real_in(double low, double high);
CLI::Validator byte_count();

}  // namespace kvik::cli
