#include "model/unicode.h"

#include <algorithm>
#include <array>

#include "model/unicode_tables.h"

namespace kvik::internal {
namespace {

constexpr CharClass ascii_class(uint32_t c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return CharClass::letter;
  if (c >= '0' && c <= '9') return CharClass::number;
  if (c == ' ' || (c >= 0x9 && c <= 0xD)) return CharClass::space;
  return CharClass::other;
}

constexpr std::array<CharClass, 128> make_ascii_classes() {
  std::array<CharClass, 128> classes{};
  for (uint32_t c = 0; c < classes.size(); ++c) classes[c] = ascii_class(c);
  return classes;
}

constexpr std::array<CharClass, 128> kAsciiClasses = make_ascii_classes();

// What may follow a lead byte: the range of the second byte, and the length of the sequence.
struct LeadByte {
  uint8_t length = 0;  // 0: never starts a sequence
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

constexpr LeadByte lead_byte(uint8_t byte) {
  if (byte < 0x80) return {.length = 1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {.length = 2};
  if (byte == 0xE0) return {.length = 3, .second_low = 0xA0};
  if (byte == 0xED) return {.length = 3, .second_high = 0x9F};
  if (byte < 0xF0) return {.length = 3};
  if (byte == 0xF0) return {.length = 4, .second_low = 0x90};
  if (byte < 0xF4) return {.length = 4};
  if (byte == 0xF4) return {.length = 4, .second_high = 0x8F};
  return {};
}

// Bytes at `pos` that are a prefix of a well-formed sequence led by `lead`.
size_t well_formed_prefix(std::string_view text, size_t pos, const LeadByte& lead) {
  const size_t available = std::min<size_t>(lead.length, text.size() - pos);
  size_t length = 1;
  for (; length < available; ++length) {
    const auto byte = static_cast<uint8_t>(text[pos + length]);
    const uint8_t low = length == 1 ? lead.second_low : 0x80;
    const uint8_t high = length == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) break;
  }
  return length;
}

}  // namespace

CharClass char_class(uint32_t code_point) {
  if (code_point < kAsciiClasses.size()) return kAsciiClasses[code_point];
  const auto next =
      std::upper_bound(kUnicodeRuns.begin(), kUnicodeRuns.end(), code_point << 2 | 3U);
  return static_cast<CharClass>(*(next - 1) & 3U);
}

bool is_python_space(uint32_t code_point) {
  return (code_point >= 0x1C && code_point <= 0x1F) || char_class(code_point) == CharClass::space;
}

Utf8Char decode_utf8(std::string_view text, size_t pos) {
  const auto first = static_cast<uint8_t>(text[pos]);
  if (first < 0x80) return {.code_point = first, .length = 1, .valid = true};
  const LeadByte lead = lead_byte(first);
  if (lead.length == 0) return {};
  const size_t length = well_formed_prefix(text, pos, lead);
  if (length < lead.length) return {.length = static_cast<uint8_t>(length)};
  uint32_t code_point = first & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    code_point = code_point << 6 | (static_cast<uint8_t>(text[pos + i]) & 0x3FU);
  }
  return {.code_point = code_point, .length = static_cast<uint8_t>(length), .valid = true};
}

size_t incomplete_utf8_tail(std::string_view text) {
  const size_t limit = std::min<size_t>(3, text.size());
  for (size_t tail = 1; tail <= limit; ++tail) {
    const size_t pos = text.size() - tail;
    const auto byte = static_cast<uint8_t>(text[pos]);
    if ((byte & 0xC0) == 0x80) continue;  // a continuation: look for its lead further left
    const LeadByte lead = lead_byte(byte);
    return lead.length > tail && well_formed_prefix(text, pos, lead) == tail ? tail : 0;
  }
  return 0;
}

void append_utf8(uint32_t code_point, std::string& out) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace kvik::internal
