#include "model/byte_alphabet.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "model/unicode.h"

namespace kvik::internal {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

constexpr uint32_t kFirstShifted = 0x100;
constexpr size_t kNumShifted = 68;

constexpr std::array<uint8_t, kNumShifted> make_shifted_bytes() {
  std::array<uint8_t, kNumShifted> bytes{};
  size_t count = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (!stands_for_itself(byte)) bytes[count++] = static_cast<uint8_t>(byte);
  }
  return bytes;
}

constexpr std::array<uint8_t, kNumShifted> kShiftedBytes = make_shifted_bytes();

}  // namespace

std::optional<std::string> bytes_of_piece(std::string_view piece) {
  std::string bytes;
  for (size_t pos = 0; pos < piece.size();) {
    const Utf8Char c = decode_utf8(piece, pos);
    if (!c.valid) return std::nullopt;
    if (c.code_point < 256 && stands_for_itself(c.code_point)) {
      bytes.push_back(static_cast<char>(c.code_point));
    } else if (c.code_point >= kFirstShifted && c.code_point < kFirstShifted + kNumShifted) {
      bytes.push_back(static_cast<char>(kShiftedBytes[c.code_point - kFirstShifted]));
    } else {
      return std::nullopt;
    }
    pos += c.length;
  }
  return bytes;
}

}  // namespace kvik::internal
