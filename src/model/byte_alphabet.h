// The printable alphabet of byte-level vocabularies: one character for each byte.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvik::internal {

// "Ġthe" -> " the". Bytes 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for themselves (as code points);
// the other 68, in ascending order, are U+0100, U+0101, ... nullopt if `piece` has a character
// outside the alphabet.
std::optional<std::string> bytes_of_piece(std::string_view piece);

}  // namespace kvik::internal
