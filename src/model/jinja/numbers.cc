#include "model/jinja/numbers.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "model/jinja/strings.h"

namespace kvik::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Without the single underscores between digits; nullopt where Python refuses one.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result.push_back(text[i]);
      continue;
    }
    const auto is_part = [](char c) {
      return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    };
    if (i == 0 || i + 1 == text.size() || !is_part(text[i - 1]) || !is_part(text[i + 1])) {
      return std::nullopt;
    }
  }
  return result;
}

}  // namespace

ParsedInteger parse_integer(std::string_view text, int base) {
  text = strip_view(text, StripSide::both);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char mark = static_cast<char>(text[1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) {
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != text.npos) return {};
    base = 10;
  }
  const std::optional<std::string> digits = without_underscores(text);
  if (!digits || digits->empty() || (*digits)[0] == '-') return {};
  uint64_t value = 0;
  const char* const end = digits->data() + digits->size();
  const auto [at, error] = std::from_chars(digits->data(), end, value, base);
  if (at != end) return {};
  const uint64_t limit = static_cast<uint64_t>(INT64_MAX) + (negative ? 1 : 0);
  if (error == std::errc::result_out_of_range || value > limit)
    return {.value = {}, .overflow = true};
  if (error != std::errc()) return {};
  return {.value = static_cast<int64_t>(negative ? 0 - value : value)};
}

std::optional<double> parse_float(std::string_view text) {
  text = strip_view(text, StripSide::both);
  const std::optional<std::string> plain = without_underscores(text);
  if (!plain || plain->empty()) return std::nullopt;
  std::string_view rest = *plain;
  const bool negative = rest[0] == '-';
  if (negative || rest[0] == '+') rest.remove_prefix(1);
  if (rest.empty() || rest[0] == '-' || rest[0] == '+') return std::nullopt;
  std::string lower(rest);
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  double value = 0;
  if (lower == "inf" || lower == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (lower == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    const char* const end = lower.data() + lower.size();
    if (!is_digit(lower[0]) && lower[0] != '.') return std::nullopt;
    const auto [at, error] = std::from_chars(lower.data(), end, value);
    if (at != end) return std::nullopt;
    if (error == std::errc::result_out_of_range) {
      // Too large or too small: the exponent says which.
      const size_t e = lower.find('e');
      const bool small = e != std::string::npos && lower[e + 1] == '-';
      value = small ? 0.0 : std::numeric_limits<double>::infinity();
    } else if (error != std::errc()) {
      return std::nullopt;
    }
  }
  return negative ? -value : value;
}

Text escape_html(const Text& text) {
  if (text.markup()) return text;
  Text result;
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    std::string bytes;
    for (; begin < run.end; ++begin) {
      switch (const char c = text.bytes()[begin]) {
        case '&':
          bytes += "&amp;";
          break;
        case '<':
          bytes += "&lt;";
          break;
        case '>':
          bytes += "&gt;";
          break;
        case '\'':
          bytes += "&#39;";
          break;
        case '"':
          bytes += "&#34;";
          break;
        default:
          bytes.push_back(c);
      }
    }
    result.append(bytes, run.trusted);
  }
  return std::move(result).with_markup(true);
}

}  // namespace kvik::jinja
