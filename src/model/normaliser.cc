#include "model/normaliser.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "kvik/core/check.h"
#include "model/unicode.h"

namespace kvik::internal {
namespace {

// Every character below U+0300 is in NFC, and none of them joins the one before it.
constexpr uint32_t kFirstThatJoins = 0x300;
// The UTF-8 of U+0300 and all later characters begins with this byte or a greater one.
constexpr uint8_t kFirstByteThatJoins = 0xCC;

bool is_plain(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<uint8_t>(c) >= kFirstByteThatJoins; });
}

int combining_class(int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// The canonical decomposition, marks in canonical order. (The library's own sort takes quadratic
// time for long runs of marks.)
std::vector<int32_t> decompose(std::string_view text) {
  constexpr int kMost = 8;  // of one character: 4 in Unicode 15
  std::vector<int32_t> points;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    std::array<utf8proc_int32_t, kMost> parts{};
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code_point), parts.data(), kMost,
                                static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE), &boundary);
    KVIK_CHECK(count >= 1 && count <= kMost, "a character decomposes into a few others");
    points.insert(points.end(), parts.begin(), parts.begin() + count);
    pos += c.length;
  }
  const auto is_mark = [](int32_t point) { return combining_class(point) != 0; };
  for (auto begin = points.begin(); begin != points.end();) {
    begin = std::find_if(begin, points.end(), is_mark);
    const auto end = std::find_if_not(begin, points.end(), is_mark);
    std::stable_sort(begin, end,
                     [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  return points;
}

// Requires: well-formed UTF-8.
std::string nfc(std::string_view text) {
  std::vector<int32_t> points = decompose(text);
  const auto count =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  KVIK_CHECK(count >= 0, "composition takes any characters");
  std::string composed;
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    append_utf8(static_cast<uint32_t>(points[static_cast<size_t>(i)]), composed);
  }
  return composed;
}

}  // namespace

NfcText::NfcText(std::string_view text) : original_(text) {
  if (is_plain(text)) return;
  is_changed_ = true;
  changed_.reserve(text.size());
  // Stretches begin at plain characters and at bytes that are not UTF-8, which join nothing before
  // them; so each is normalised by itself.
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    const bool joins = c.valid && c.code_point >= kFirstThatJoins;
    if (!joins && pos > begin) {
      add_stretch(text.substr(begin, pos - begin), begin);
      begin = pos;
    }
    pos += c.length;
    if (c.valid) continue;
    changed_ += text.substr(begin, pos - begin);
    begin = pos;
  }
  if (begin < text.size()) add_stretch(text.substr(begin), begin);
}

void NfcText::add_stretch(std::string_view stretch, size_t there) {
  // One character below U+0300.
  const std::string normal = is_plain(stretch) ? std::string(stretch) : nfc(stretch);
  if (normal != stretch) {
    anchors_.push_back({changed_.size(), there, true});
    anchors_.push_back({changed_.size() + normal.size(), there + stretch.size(), false});
  }
  changed_ += normal;
}

size_t NfcText::original_offset(size_t offset) const {
  const auto next =
      std::upper_bound(anchors_.begin(), anchors_.end(), offset,
                       [](size_t wanted, const Anchor& anchor) { return wanted < anchor.here; });
  if (next == anchors_.begin()) return offset;
  const Anchor& anchor = *(next - 1);
  return anchor.is_changed ? anchor.there : anchor.there + (offset - anchor.here);
}

std::string_view nfc_unicode_version() { return utf8proc_unicode_version(); }

}  // namespace kvik::internal
