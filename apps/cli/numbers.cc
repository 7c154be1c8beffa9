#include "numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "cli.h"

namespace kvik::cli {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Has digits, and every character is a digit or one of `others`.
bool consists_of_digits(std::string_view text, std::string_view others) {
  return std::any_of(text.begin(), text.end(), is_digit) &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_digit(c) || others.find(c) != others.npos; });
}

Status not_a_number(std::string_view text, const char* wanted) {
  return invalid_argument("'" + std::string(text) + "' is not " + wanted);
}

// The value of all of `text`, out_of_range too where the type has no such value.
template <typename Number>
std::errc convert(std::string_view text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop != end) return std::errc::invalid_argument;
  return error;
}

std::string plain(double value) { return format("%.6g", value); }

}  // namespace

Result<int64_t> parse_integer(std::string_view text, int64_t low, int64_t high) {
  int64_t value = 0;
  const std::errc error =
      consists_of_digits(text, "-") ? convert(text, value) : std::errc::invalid_argument;
  if (error == std::errc::invalid_argument) return not_a_number(text, "a whole decimal number");
  if (error == std::errc() && value >= low && value <= high) return value;
  const std::string range = high == INT64_MAX
                                ? "of " + std::to_string(low) + " or more"
                                : "from " + std::to_string(low) + " to " + std::to_string(high);
  return invalid_argument("'" + std::string(text) + "' is out of range; give a whole number " +
                          range);
}

Result<double> parse_real(std::string_view text, double low, double high) {
  double value = 0;
  const std::errc error =
      consists_of_digits(text, "-+.eE") ? convert(text, value) : std::errc::invalid_argument;
  if (error == std::errc::invalid_argument) return not_a_number(text, "a decimal number");
  const bool vanishes = value != 0 && static_cast<float>(value) == 0;
  if (error == std::errc() && value >= low && value <= high && !vanishes) return value;
  return invalid_argument("'" + std::string(text) + "' is out of range; give a number from " +
                          plain(low) + " to " + plain(high) + (vanishes ? ", or plain 0" : ""));
}

namespace {

// Bytes of a unit; nullopt if it is none.
std::optional<int64_t> unit_bytes(std::string_view text) {
  std::string unit;
  for (const char c : text) unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (unit.empty() || unit == "b") return 1;
  const size_t power = std::string_view("kmgt").find(unit[0]);
  const std::string rest = unit.substr(1);
  if (power == std::string_view::npos || (!rest.empty() && rest != "b" && rest != "ib")) {
    return std::nullopt;
  }
  int64_t bytes = 1;
  for (size_t i = 0; i <= power; ++i) bytes *= rest == "b" ? 1000 : 1024;
  return bytes;
}

}  // namespace

Result<int64_t> parse_bytes(std::string_view text) {
  constexpr const char* kWanted = "an amount of memory; give it like 8GiB";
  // An exponent is part of the number only where digits follow it.
  size_t end = text.find_first_not_of("0123456789.");
  if (end != text.npos && (text[end] == 'e' || text[end] == 'E')) {
    const size_t digits = text.find_first_not_of("+-", end + 1);
    if (digits != text.npos && digits <= end + 2 && is_digit(text[digits])) {
      end = text.find_first_not_of("0123456789", digits);
    }
  }
  const std::string_view number = text.substr(0, end);
  std::string_view unit = end == text.npos ? std::string_view() : text.substr(end);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const std::optional<int64_t> factor = unit_bytes(unit);
  if (!factor) return not_a_number(text, kWanted);
  const Status out_of_range = invalid_argument(
      "'" + std::string(text) + "' is out of range; give 1 byte or more, and less than 2^63");
  if (consists_of_digits(number, "")) {
    int64_t count = 0;
    const std::errc error = convert(number, count);
    int64_t bytes = 0;
    if (error != std::errc() || __builtin_mul_overflow(count, *factor, &bytes) || bytes < 1) {
      return out_of_range;
    }
    return bytes;
  }
  double value = 0;
  if (!consists_of_digits(number, ".eE+-")) return not_a_number(text, kWanted);
  const std::errc error = convert(number, value);
  if (error == std::errc::invalid_argument) return not_a_number(text, kWanted);
  value *= static_cast<double>(*factor);
  if (error != std::errc() || !(value >= 1 && value < 0x1p63)) return out_of_range;
  return static_cast<int64_t>(value);
}

namespace {

// Replaces the text by what `read` makes of it.
template <typename Read>
CLI::Validator number_validator(Read read, std::string description) {
  return CLI::Validator(
      [read = std::move(read)](std::string& text) {
        const Result<std::string> digits = read(text);
        if (!digits.ok()) return digits.status().message();
        text = digits.value();
        return std::string();
      },
      std::move(description));
}

}  // namespace

CLI::Validator integer_in(int64_t low, int64_t high) {
  const auto read = [=](const std::string& text) -> Result<std::string> {
    const Result<int64_t> value = parse_integer(text, low, high);
    if (!value.ok()) return value.status();
    return std::to_string(*value);
  };
  return number_validator(
      read, format("%lld to %lld", static_cast<long long>(low), static_cast<long long>(high)));
}

CLI::Validator real_in(double low, double high) {
  const auto read = [=](const std::string& text) -> Result<std::string> {
    const Result<double> value = parse_real(text, low, high);
    if (!value.ok()) return value.status();
    return format("%.17g", *value);
  };
  return number_validator(read, plain(low) + " to " + plain(high));
}

CLI::Validator byte_count() {
  const auto read = [](const std::string& text) -> Result<std::string> {
    const Result<int64_t> value = parse_bytes(text);
    if (!value.ok()) return value.status();
    return std::to_string(*value);
  };
  return number_validator(read, "BYTES");
}

}  // namespace kvik::cli
