// String operations as Python's str has them, on UTF-8. Ill-formed bytes count as one character for
// each maximal subpart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/jinja/text.h"

namespace kvik::jinja {

enum class StripSide : uint8_t { left, right, both };
enum class Case : uint8_t { upper, lower, title };
enum class CharKind : uint8_t { alpha, decimal, digit, numeric, lower, upper, titlecase, space };

// Without the characters of `set` at its ends; white space if there is no set.
std::string_view strip_view(std::string_view text, StripSide side,
                            std::optional<std::string_view> set = std::nullopt);
Text strip(const Text& text, StripSide side, std::optional<std::string_view> set = std::nullopt);

size_t count_chars(std::string_view text);
// Where each character starts, and the size of the text at the end.
std::vector<size_t> char_offsets(std::string_view text);

// Where non-overlapping occurrences start. Requires: `part` is not empty.
std::vector<size_t> find_all(std::string_view text, std::string_view part);

// Requires: a separator that is not empty, or none (white space). At most `max_splits` cuts, any
// number if nullopt; from the right end if `from_right`.
std::vector<Text> split(const Text& text, std::optional<std::string_view> separator,
                        std::optional<int64_t> max_splits, bool from_right);
std::vector<Text> split_lines(const Text& text, bool keep_ends);

// At most `count` times. An empty `from` is found before each character and at the end.
Text replace(const Text& text, std::string_view from, const Text& to, std::optional<int64_t> count);

// Every character in that case, or: the first of the text (capitalize) or of each word
// (title_words) in title case and the others in lower case.
Text to_case(const Text& text, Case to);
Text capitalize(const Text& text);
Text title_words(const Text& text);
Text swap_case(const Text& text);

bool is_kind(uint32_t code_point, CharKind kind);
bool is_printable(uint32_t code_point);
// isalpha() and the like: at least one character, and all of this kind. For `lower` and `upper`: at
// least one, and none of the other cases.
bool all_of_kind(std::string_view text, CharKind kind);

// The text between spaces (or `fill`) on both sides up to `width` characters.
Text pad(const Text& text, int64_t width, size_t left_share_percent, const Text& fill);

// A float as Python's repr() prints it.
std::string float_repr(double number);

}  // namespace kvik::jinja
