// Reading the names of enumerators as users write them.
#pragma once

#include <cctype>
#include <span>
#include <string>
#include <string_view>

#include "kvik/core/status.h"

namespace kvik::internal {

template <class T>
struct Named {
  std::string_view name;
  T value;
};

// Without white space around it, in lower case, '-' and '_' both as `separator`.
inline std::string normalized(std::string_view text, char separator) {
  std::string name;
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return name;
  text = text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
  for (const char c : text) {
    const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    name += lower == '-' || lower == '_' ? separator : lower;
  }
  return name;
}

// Errors: invalid_argument that names `what` and lists the names.
template <class T>
Result<T> parse_name(const char* what, std::string_view text, char separator,
                     std::span<const Named<T>> names) {
  const std::string name = normalized(text, separator);
  std::string list;
  for (const Named<T>& entry : names) {
    if (name == entry.name) return entry.value;
    list += (list.empty() ? "" : ", ") + std::string(entry.name);
  }
  return invalid_argument(std::string(what) + " \"" + std::string(text) + "\" is none of " + list);
}

}  // namespace kvik::internal
