// What text % values and text.format(...) share: widths, signs and digits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/jinja/text.h"

namespace kvik::jinja {

// What stands between "%" or ":" and the kind of conversion.
struct Spec {
  Text fill{" ", true};
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false, zero = false;
  char grouping = '\0';
  int64_t width = 0;
  int precision = -1;
  char type = '\0';
};

// Of widths and precisions.
inline constexpr int64_t kMaxWidth = 100000;

// The decimal number at text[pos], which moves behind it; 0 if there is none. Refuses what is
// larger than kMaxWidth.
int64_t read_number(std::string_view text, size_t& pos, size_t offset);
// C's printf of a double. Requires: precision <= kMaxWidth.
std::string print_double(double value, int precision, char type, bool alternate);
std::string digits_of(uint64_t value, int base, bool upper);
uint64_t magnitude(int64_t value);
// prefix and body, filled up to the width of `spec`.
Text with_width(const Text& prefix, const Text& body, const Spec& spec, char default_align);
// Digits with their sign, a mark like 0x, separators between groups, and the width of `spec`.
Text number_text(bool negative, const std::string& mark, std::string digits, const Spec& spec,
                 size_t group);

}  // namespace kvik::jinja
