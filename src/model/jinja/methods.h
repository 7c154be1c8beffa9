// What methods and filters of strings share, and tables of builtins.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "model/jinja/builtins.h"
#include "model/jinja/text.h"

namespace kvik::jinja {

struct NamedBuiltin {
  std::string_view name;
  Builtin builtin;
};

template <size_t N>
Builtin find_builtin(const NamedBuiltin (&table)[N], std::string_view name) {
  for (const NamedBuiltin& entry : table) {
    if (entry.name == name) return entry.builtin;
  }
  return nullptr;
}

Builtin find_text_method(std::string_view name);
Builtin find_text_filter(std::string_view name);
Builtin find_list_filter(std::string_view name);

// text[begin:end] of Python, by characters. Not possible where begin lies after the end.
struct CharRange {
  Text text{};
  int64_t begin = 0;
  bool possible = true;
};
CharRange cut_chars(const Call& call, const Text& text, const std::optional<Value>& begin,
                    const std::optional<Value>& end);

Value padded(const Call& call, const Text& text, int64_t width, size_t left_share_percent,
             const Text& fill);
// A negative count: everywhere.
Value replaced(const Call& call, const Text& text, const Text& from, const Text& to, int64_t count);

}  // namespace kvik::jinja
