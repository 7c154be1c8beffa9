#include "model/byte_piece.h"

#include <cstdio>
#include <string>

namespace kvik::internal {

std::optional<uint8_t> parse_byte_piece(std::string_view piece) {
  const auto digit = [](char c) -> std::optional<int> {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return std::nullopt;
  };
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return std::nullopt;
  const std::optional<int> high = digit(piece[3]), low = digit(piece[4]);
  if (!high || !low) return std::nullopt;
  return static_cast<uint8_t>(*high * 16 + *low);
}

Status missing_byte(uint8_t byte, size_t offset) {
  char hex[8];
  std::snprintf(hex, sizeof hex, "0x%02X", byte);
  return invalid_argument("the vocabulary has no token for the byte " + std::string(hex) +
                          " at offset " + std::to_string(offset) +
                          "; remove it from the text or allow it to be dropped");
}

}  // namespace kvik::internal
