#include "model/jinja/format_spec.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <utility>

#include "model/jinja/error.h"
#include "model/jinja/strings.h"

namespace kvik::jinja {

int64_t read_number(std::string_view text, size_t& pos, size_t offset) {
  int64_t number = 0;
  for (; pos < text.size() && text[pos] >= '0' && text[pos] <= '9'; ++pos) {
    number = number * 10 + (text[pos] - '0');
    if (number > kMaxWidth) refuse("a width or precision of more than 100000", offset);
  }
  return number;
}

std::string print_double(double value, int precision, char type, bool alternate) {
  if (std::isnan(value)) return std::isupper(type) != 0 ? "NAN" : "nan";
  if (std::isinf(value)) return std::isupper(type) != 0 ? "INF" : "inf";
  const std::string form = std::string("%") + (alternate ? "#" : "") + ".*" + type;
  const int size = std::snprintf(nullptr, 0, form.c_str(), precision, value);
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), form.c_str(), precision, value);
  text.resize(static_cast<size_t>(size));
  return text;
}

std::string digits_of(uint64_t value, int base, bool upper) {
  std::string digits;
  do {
    const auto digit = static_cast<char>(value % static_cast<uint64_t>(base));
    digits.insert(digits.begin(),
                  static_cast<char>(digit < 10 ? '0' + digit : (upper ? 'A' : 'a') + digit - 10));
    value /= static_cast<uint64_t>(base);
  } while (value > 0);
  return digits;
}

uint64_t magnitude(int64_t value) {
  return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

namespace {

// Separators between groups of digits before the point.
std::string grouped(std::string digits, char separator, size_t group) {
  const size_t end = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  for (size_t at = end; at > group; at -= group) digits.insert(at - group, 1, separator);
  return digits;
}

}  // namespace

Text with_width(const Text& prefix, const Text& body, const Spec& spec, char default_align) {
  Text whole = prefix;
  whole.append(body);
  const int64_t missing = spec.width - static_cast<int64_t>(count_chars(whole.bytes()));
  if (missing <= 0) return whole;
  const char align = spec.align != '\0' ? spec.align : default_align;
  const int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  Text result;
  if (align == '=') result.append(prefix);
  for (int64_t i = 0; i < before; ++i) result.append(spec.fill);
  result.append(align == '=' ? body : whole);
  for (int64_t i = before; i < missing; ++i) result.append(spec.fill);
  return result;
}

Text number_text(bool negative, const std::string& mark, std::string digits, const Spec& spec,
                 size_t group) {
  std::string prefix = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  prefix += mark;
  if (spec.grouping != '\0') {
    digits = grouped(std::move(digits), spec.grouping, group);
    // Zeros in front are grouped too.
    if (spec.align == '=' && spec.fill.bytes() == "0") {
      refuse("zeros in front of grouped digits are not supported", 0);
    }
  }
  return with_width(Text(prefix, true), Text(std::move(digits), true), spec, '>');
}

}  // namespace kvik::jinja
