// String operations as Python's str has them, on UTF-8. Ill-formed bytes count as one character for
// each maximal subpart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "model/jinja/text.h"

namespace kvik::jinja {

enum class StripSide : uint8_t { left, right, both };

// Without the characters of `set` at its ends; white space if there is no set.
std::string_view strip_view(std::string_view text, StripSide side,
                            std::optional<std::string_view> set = std::nullopt);
Text strip(const Text& text, StripSide side, std::optional<std::string_view> set = std::nullopt);

size_t count_chars(std::string_view text);
// Where each character starts, and the size of the text at the end.
std::vector<size_t> char_offsets(std::string_view text);

// Requires: a separator that is not empty. At most `max_splits` cuts, any number if nullopt.
std::vector<Text> split(const Text& text, std::string_view separator,
                        std::optional<int64_t> max_splits);

// Requires: `from` is not empty.
Text replace(const Text& text, std::string_view from, const Text& to);

// nullopt if the text is not ASCII.
std::optional<Text> to_case(const Text& text, bool upper);

}  // namespace kvik::jinja
