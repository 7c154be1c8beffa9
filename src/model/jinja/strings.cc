#include "model/jinja/strings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "model/jinja/case_tables.h"
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
  return text.substr(begin, begin + kept.size()).with_markup(text.markup());
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

std::vector<size_t> find_all(std::string_view text, std::string_view part) {
  std::vector<size_t> found;
  for (size_t at = 0; (at = find_bytes(text, part, at)) != std::string_view::npos;) {
    found.push_back(at);
    at += part.size();
  }
  return found;
}

namespace {

// Runs of what is not white space, as byte ranges.
std::vector<std::pair<size_t, size_t>> words_of(std::string_view text) {
  std::vector<std::pair<size_t, size_t>> words;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    const internal::Utf8Char c = internal::decode_utf8(text, pos);
    const bool space = c.valid && internal::is_python_space(c.code_point);
    if (!space && !inside) words.emplace_back(pos, pos);
    pos += c.length;
    if (!space) words.back().second = pos;
    inside = !space;
  }
  return words;
}

std::vector<Text> split_at_space(const Text& text, std::optional<int64_t> max_splits,
                                 bool from_right) {
  std::vector<std::pair<size_t, size_t>> words = words_of(text.bytes());
  const auto count = static_cast<int64_t>(words.size());
  if (max_splits && *max_splits < count - 1) {
    // What is not cut keeps its white space inside and loses it at its outer end.
    const auto kept = static_cast<size_t>(*max_splits);
    if (from_right) {
      const size_t first = words.size() - kept - 1;
      words[first].first = words[0].first;
      words.erase(words.begin(), words.begin() + static_cast<int64_t>(first));
      words[0].first = 0;
      const std::string_view head =
          strip_view(std::string_view(text.bytes()).substr(0, words[0].second), StripSide::right);
      words[0].second = head.size();
    } else {
      words[kept].second = text.size();
      words.resize(kept + 1);
    }
  }
  std::vector<Text> parts;
  for (const auto& [begin, end] : words) parts.push_back(text.substr(begin, end));
  return parts;
}

bool in_runs(const ClassRun* runs, size_t count, uint32_t c) {
  const ClassRun* end = runs + count;
  const ClassRun* it =
      std::upper_bound(runs, end, c, [](uint32_t x, const ClassRun& run) { return x < run.first; });
  return it != runs && c <= (it - 1)->last;
}

struct CaseTable {
  const CaseRun* runs;
  size_t num_runs;
  const CaseSpecial* specials;
  size_t num_specials;
};

CaseTable table_of(Case to) {
  switch (to) {
    case Case::upper:
      return {kUpperRuns, kNumUpperRuns, kUpperSpecials, kNumUpperSpecials};
    case Case::lower:
      return {kLowerRuns, kNumLowerRuns, kLowerSpecials, kNumLowerSpecials};
    case Case::title:
      break;
  }
  return {kTitleRuns, kNumTitleRuns, kTitleSpecials, kNumTitleSpecials};
}

void append_cased(uint32_t c, Case to, std::string& out) {
  const CaseTable table = table_of(to);
  const CaseRun* end = table.runs + table.num_runs;
  const CaseRun* it = std::upper_bound(
      table.runs, end, c, [](uint32_t x, const CaseRun& run) { return x < run.first; });
  // Runs of stride 2 may be interleaved.
  for (int back = 0; back < 2 && it != table.runs; ++back) {
    --it;
    if (c <= it->last && (c - it->first) % it->stride == 0) {
      internal::append_utf8(static_cast<uint32_t>(static_cast<int64_t>(c) + it->difference), out);
      return;
    }
  }
  const CaseSpecial* special = std::find_if(table.specials, table.specials + table.num_specials,
                                            [c](const CaseSpecial& s) { return s.from == c; });
  if (special == table.specials + table.num_specials) {
    internal::append_utf8(c, out);
    return;
  }
  for (const uint32_t to_char : special->to) {
    if (to_char != 0) internal::append_utf8(to_char, out);
  }
}

bool is_cased(uint32_t c) {
  return is_kind(c, CharKind::lower) || is_kind(c, CharKind::upper) ||
         is_kind(c, CharKind::titlecase);
}

// Each character in the case that `choose` gives for it (nullopt: as it is). A capital sigma at the
// end of a word has a small letter of its own.
template <class Choose>
Text map_case(const Text& text, Choose choose) {
  constexpr uint32_t kSigma = 0x3A3;
  constexpr uint32_t kFinalSigma = 0x3C2;
  Text result;
  size_t begin = 0;
  bool after_cased = false;
  const std::string_view bytes = text.bytes();
  for (const Text::Run& run : text.runs()) {
    std::string out;
    while (begin < run.end) {
      const internal::Utf8Char c = internal::decode_utf8(bytes, begin);
      const size_t next = std::min(run.end, begin + c.length);
      const std::optional<Case> to =
          c.valid && next == begin + c.length ? choose(c.code_point) : std::nullopt;
      if (!to) {
        out += bytes.substr(begin, next - begin);
      } else if (c.code_point < 0x80) {
        const auto ascii = static_cast<char>(c.code_point);
        const bool flips =
            *to == Case::lower ? ascii >= 'A' && ascii <= 'Z' : ascii >= 'a' && ascii <= 'z';
        out.push_back(flips ? static_cast<char>(ascii ^ 0x20) : ascii);
      } else if (c.code_point == kSigma && *to == Case::lower && after_cased &&
                 !(next < bytes.size() &&
                   is_cased(internal::decode_utf8(bytes, next).code_point))) {
        internal::append_utf8(kFinalSigma, out);
      } else {
        append_cased(c.code_point, *to, out);
      }
      after_cased = c.valid && is_cased(c.code_point);
      begin = next;
    }
    result.append(out, run.trusted);
  }
  return std::move(result).with_markup(text.markup());
}

}  // namespace

std::vector<Text> split(const Text& text, std::optional<std::string_view> separator,
                        std::optional<int64_t> max_splits, bool from_right) {
  if (!separator) return split_at_space(text, max_splits, from_right);
  std::vector<size_t> cuts = find_all(text.bytes(), *separator);
  if (from_right && separator->size() > 1) {
    // Occurrences counted from the right may overlap differently.
    cuts.clear();
    const std::string_view bytes = text.bytes();
    for (size_t end = bytes.size(); end >= separator->size();) {
      const size_t at = bytes.rfind(*separator, end - separator->size());
      if (at == std::string_view::npos) break;
      cuts.insert(cuts.begin(), at);
      end = at;
    }
  }
  if (max_splits && *max_splits < static_cast<int64_t>(cuts.size())) {
    if (from_right) {
      cuts.erase(cuts.begin(), cuts.end() - *max_splits);
    } else {
      cuts.resize(static_cast<size_t>(*max_splits));
    }
  }
  std::vector<Text> parts;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    parts.push_back(text.substr(begin, cut));
    begin = cut + separator->size();
  }
  parts.push_back(text.substr(begin, text.size()));
  return parts;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  const auto ends_line = [](uint32_t c) {
    return (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
  };
  std::vector<Text> lines;
  const std::string_view bytes = text.bytes();
  size_t begin = 0;
  for (size_t pos = 0; pos < bytes.size();) {
    const internal::Utf8Char c = internal::decode_utf8(bytes, pos);
    size_t next = pos + c.length;
    if (c.valid && ends_line(c.code_point)) {
      if (bytes[pos] == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      lines.push_back(text.substr(begin, keep_ends ? next : pos));
      begin = next;
    }
    pos = next;
  }
  if (begin < bytes.size()) lines.push_back(text.substr(begin, bytes.size()));
  return lines;
}

Text replace(const Text& text, std::string_view from, const Text& to,
             std::optional<int64_t> count) {
  const std::vector<size_t> places =
      from.empty() ? char_offsets(text.bytes()) : find_all(text.bytes(), from);
  Text result;
  size_t begin = 0;
  int64_t left = count.value_or(INT64_MAX);
  for (const size_t place : places) {
    if (left-- <= 0) break;
    result.append(text, begin, place);
    result.append(to);
    begin = place + from.size();
  }
  result.append(text, begin, text.size());
  return result;
}

Text to_case(const Text& text, Case to) {
  return map_case(text, [to](uint32_t) { return std::optional(to); });
}

Text capitalize(const Text& text) {
  bool first = true;
  return map_case(text, [&](uint32_t) {
    return std::optional(std::exchange(first, false) ? Case::title : Case::lower);
  });
}

Text title_words(const Text& text) {
  bool inside = false;
  return map_case(text, [&](uint32_t c) {
    const Case to = inside ? Case::lower : Case::title;
    inside = is_cased(c);
    return std::optional(to);
  });
}

Text swap_case(const Text& text) {
  return map_case(text, [](uint32_t c) -> std::optional<Case> {
    if (is_kind(c, CharKind::lower)) return Case::upper;
    if (is_kind(c, CharKind::upper)) return Case::lower;
    return std::nullopt;
  });
}

bool is_kind(uint32_t c, CharKind kind) {
  switch (kind) {
    case CharKind::alpha:
      return in_runs(kAlpha, kNumAlpha, c);
    case CharKind::decimal:
      return in_runs(kDecimal, kNumDecimal, c);
    case CharKind::digit:
      return in_runs(kDigit, kNumDigit, c);
    case CharKind::numeric:
      return in_runs(kNumeric, kNumNumeric, c);
    case CharKind::lower:
      return in_runs(kLowerCase, kNumLowerCase, c);
    case CharKind::upper:
      return in_runs(kUpperCase, kNumUpperCase, c);
    case CharKind::titlecase:
      return in_runs(kTitleCase, kNumTitleCase, c);
    case CharKind::space:
      break;
  }
  return internal::is_python_space(c);
}

bool is_printable(uint32_t c) { return !in_runs(kUnprintable, kNumUnprintable, c); }

bool all_of_kind(std::string_view text, CharKind kind) {
  const bool by_case = kind == CharKind::lower || kind == CharKind::upper;
  bool any = false;
  for (size_t pos = 0; pos < text.size();) {
    const internal::Utf8Char c = internal::decode_utf8(text, pos);
    pos += c.length;
    const bool is_one = c.valid && is_kind(c.code_point, kind);
    if (!is_one && (!by_case || (c.valid && is_cased(c.code_point)))) return false;
    any |= is_one;
  }
  return any;
}

Text pad(const Text& text, int64_t width, size_t left_share_percent, const Text& fill) {
  const auto have = static_cast<int64_t>(count_chars(text.bytes()));
  const int64_t missing = std::max<int64_t>(0, width - have);
  // As CPython does it: the odd space goes to the left where the width is odd.
  const int64_t left = left_share_percent == 50
                           ? missing / 2 + (missing & width & 1)
                           : missing * static_cast<int64_t>(left_share_percent) / 100;
  Text result;
  for (int64_t i = 0; i < left; ++i) result.append(fill);
  result.append(text);
  for (int64_t i = left; i < missing; ++i) result.append(fill);
  return std::move(result).with_markup(text.markup());
}

std::string float_repr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t exponent_begin = text[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(text.data() + exponent_begin, end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto plain =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::fixed).ptr;
  std::string result(buffer, static_cast<size_t>(plain - buffer));
  if (result.find('.') == std::string::npos) result += ".0";
  return result;
}

}  // namespace kvik::jinja
