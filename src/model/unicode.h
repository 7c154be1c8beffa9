// UTF-8 decoding that accepts any bytes, and the character classes that pre-tokenizers use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvik::internal {

// General category L, general category N, the property White_Space, everything else (also code
// points that are not assigned). The order is that of kUnicodeRuns.
enum class CharClass : uint8_t { other, letter, number, space };

// Requires: code_point <= 0x10FFFF.
CharClass char_class(uint32_t code_point);

// White space as Python's str.strip() sees it: White_Space and U+001C..U+001F.
bool is_python_space(uint32_t code_point);

struct Utf8Char {
  uint32_t code_point = 0;  // meaningless unless valid
  uint8_t length = 1;       // bytes
  bool valid = false;
};

// The character at text[pos]. Where the bytes are not well-formed UTF-8 (Unicode 15.1, table 3-7:
// no surrogates, no overlong forms, nothing above U+10FFFF), valid is false and length is that of
// the longest prefix of a well-formed sequence, at least 1: the "maximal subpart" of chapter 3.9.
// Requires: pos < text.size().
Utf8Char decode_utf8(std::string_view text, size_t pos);

// How many bytes at the end of `text` start a well-formed character that is not complete: 0 to 3.
size_t incomplete_utf8_tail(std::string_view text);

// Requires: code_point <= 0x10FFFF and not a surrogate.
void append_utf8(uint32_t code_point, std::string& out);

}  // namespace kvik::internal
