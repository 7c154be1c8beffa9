// Numbers of Python in values.
#pragma once

#include <cstdint>
#include <optional>

#include "model/jinja/text.h"
#include "model/jinja/value.h"

namespace kvik::jinja {

// true counts as 1, as in Python.
inline std::optional<int64_t> as_integer(const Value& value) {
  if (const bool* boolean = value.boolean()) return *boolean ? 1 : 0;
  if (const int64_t* integer = value.integer()) return *integer;
  return std::nullopt;
}

inline std::optional<double> as_double(const Value& value) {
  if (value.real() != nullptr) return *value.real();
  if (const std::optional<int64_t> integer = as_integer(value)) {
    return static_cast<double>(*integer);
  }
  return std::nullopt;
}

// int(text) and float(text) of Python; nullopt where it refuses. `base` 0 goes by the prefix.
struct ParsedInteger {
  std::optional<int64_t> value{};
  bool overflow = false;
};
ParsedInteger parse_integer(std::string_view text, int base);
std::optional<double> parse_float(std::string_view text);

// & < > ' " become entities; Markup stays as it is. The result is Markup.
Text escape_html(const Text& text);

}  // namespace kvik::jinja
