#include "environment.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace kvik::python {
namespace {

struct Setting {
  const char* name = nullptr;
  std::string text;
};

std::optional<Setting> find(const Variable& variable) {
  for (const char* const name : {variable.name, variable.old_name}) {
    const char* const text = name == nullptr ? nullptr : std::getenv(name);
    if (text != nullptr && *text != '\0') return Setting{name, text};
  }
  return std::nullopt;
}

Status refuse(const Setting& setting, const char* wanted) {
  return invalid_argument("the environment variable " + std::string(setting.name) + " is \"" +
                          setting.text + "\"; it needs " + wanted);
}

}  // namespace

std::optional<std::string> text_of(const Variable& variable) {
  const std::optional<Setting> setting = find(variable);
  return setting ? std::optional(setting->text) : std::nullopt;
}

Result<std::optional<bool>> flag_of(const Variable& variable) {
  static constexpr std::array<std::string_view, 6> kYes = {"1",  "true",   "yes",
                                                           "on", "enable", "enabled"};
  static constexpr std::array<std::string_view, 6> kNo = {"0",   "false",   "no",
                                                          "off", "disable", "disabled"};
  const std::optional<Setting> setting = find(variable);
  if (!setting) return std::optional<bool>();
  std::string text = setting->text;
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (std::find(kYes.begin(), kYes.end(), text) != kYes.end()) return std::optional(true);
  if (std::find(kNo.begin(), kNo.end(), text) != kNo.end()) return std::optional(false);
  return refuse(*setting, "1, true, yes, on or 0, false, no, off");
}

Result<std::optional<int64_t>> number_of(const Variable& variable) {
  const std::optional<Setting> setting = find(variable);
  if (!setting) return std::optional<int64_t>();
  int64_t number = 0;
  const char* const end = setting->text.data() + setting->text.size();
  const auto [stop, error] = std::from_chars(setting->text.data(), end, number);
  if (error != std::errc() || stop != end) return refuse(*setting, "a whole number");
  return std::optional(number);
}

Result<std::optional<int64_t>> positive_number_of(const Variable& variable) {
  Result<std::optional<int64_t>> number = number_of(variable);
  if (number.ok() && *number && **number <= 0) return std::optional<int64_t>();
  return number;
}

}  // namespace kvik::python
