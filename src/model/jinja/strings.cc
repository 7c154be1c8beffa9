#include "model/jinja/strings.h"

#include <algorithm>

#include "model/unicode.h"

namespace kvik::jinja {
namespace {

bool in_set(std::string_view text, size_t pos, size_t length, std::optional<std::string_view> set) {
  if (set) return set->find(text.substr(pos, length)) != std::string_view::npos;
  const internal::Utf8Char c = internal::decode_utf8(text, pos);
  return c.valid && internal::is_python_space(c.code_point);
}

// Start of the last character of text[0, end). Requires: end > 0.
size_t previous_char(std::string_view text, size_t end) {
  for (size_t length = std::min<size_t>(4, end); length > 1; --length) {
    const internal::Utf8Char c = internal::decode_utf8(text.substr(0, end), end - length);
    if (c.length == length) return end - length;
  }
  return end - 1;
}

}  // namespace

std::string_view strip_view(std::string_view text, StripSide side,
                            std::optional<std::string_view> set) {
  size_t begin = 0;
  size_t end = text.size();
  while (side != StripSide::right && begin < end) {
    const size_t length = internal::decode_utf8(text, begin).length;
    if (!in_set(text, begin, length, set)) break;
    begin += length;
  }
  while (side != StripSide::left && begin < end) {
    const size_t last = previous_char(text, end);
    if (!in_set(text, last, end - last, set)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

Text strip(const Text& text, StripSide side, std::optional<std::string_view> set) {
  const std::string_view kept = strip_view(text.bytes(), side, set);
  const auto begin = static_cast<size_t>(kept.data() - text.bytes().data());
  return text.substr(begin, begin + kept.size());
}

size_t count_chars(std::string_view text) {
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) pos += internal::decode_utf8(text, pos).length;
  return count;
}

std::vector<size_t> char_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t pos = 0; pos < text.size(); pos += internal::decode_utf8(text, pos).length) {
    offsets.push_back(pos);
  }
  offsets.push_back(text.size());
  return offsets;
}

std::vector<Text> split(const Text& text, std::string_view separator,
                        std::optional<int64_t> max_splits) {
  std::vector<Text> parts;
  size_t begin = 0;
  while (!max_splits || static_cast<int64_t>(parts.size()) < *max_splits) {
    const size_t found = find_bytes(text.bytes(), separator, begin);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(begin, found));
    begin = found + separator.size();
  }
  parts.push_back(text.substr(begin, text.size()));
  return parts;
}

Text replace(const Text& text, std::string_view from, const Text& to) {
  Text result;
  size_t begin = 0;
  for (size_t found; (found = find_bytes(text.bytes(), from, begin)) != std::string_view::npos;) {
    result.append(text, begin, found);
    result.append(to);
    begin = found + from.size();
  }
  result.append(text, begin, text.size());
  return result;
}

std::optional<Text> to_case(const Text& text, bool upper) {
  Text result;
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    std::string bytes = text.bytes().substr(begin, run.end - begin);
    for (char& c : bytes) {
      if (static_cast<unsigned char>(c) >= 0x80) return std::nullopt;
      if (upper ? (c >= 'a' && c <= 'z') : (c >= 'A' && c <= 'Z')) c = static_cast<char>(c ^ 0x20);
    }
    result.append(bytes, run.trusted);
    begin = run.end;
  }
  return result;
}

}  // namespace kvik::jinja
