// Methods of Python's str.
#include <algorithm>
#include <string>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/methods.h"
#include "model/jinja/strings.h"

namespace kvik::jinja {
namespace {

// str methods take their arguments by position.
std::vector<std::optional<Value>> plain_args(const Call& call,
                                             std::initializer_list<std::string_view> names,
                                             size_t required = 0) {
  if (!call.args.named.empty()) call.wrong("takes no named arguments");
  return call.bind(names, required);
}

Value affix(const Call& call, bool at_start) {
  const auto args = plain_args(call, {"affix", "start", "end"}, 1);
  const Text& whole = *call.object.text();
  Text part = whole;
  if (args[1] || args[2]) {
    call.budget.pay(whole.size() * 16, call.offset);
    part = cut_chars(call, whole, args[1], args[2]).text;
  }
  const std::string_view bytes = part.bytes();
  const auto fits = [&](const Text& text) {
    return at_start ? bytes.starts_with(text.bytes()) : bytes.ends_with(text.bytes());
  };
  const List* list = args[0]->list();
  if (list == nullptr || list->kind != List::Kind::tuple) {
    return Value(fits(to_string_arg(call, *args[0], "affix")));
  }
  return Value(std::any_of(list->items.begin(), list->items.end(), [&](const Value& item) {
    return fits(to_string_arg(call, item, "affix"));
  }));
}

Value strip_method(const Call& call, StripSide side) {
  const auto args = plain_args(call, {"chars"});
  const Text& text = *call.object.text();
  call.budget.pay_text(text, call.offset);
  if (is_absent(args[0])) return Value(strip(text, side));
  const std::string& set = to_string_arg(call, *args[0], "chars").bytes();
  call.pay(text.size() * (set.size() / 16));
  return Value(strip(text, side, set));
}

Value text_list(const Call& call, std::vector<Text> parts) {
  call.pay(parts.size() * (sizeof(Value) + sizeof(Text)));
  std::vector<Value> items;
  for (Text& part : parts) items.emplace_back(std::move(part));
  return call.evaluator.make_list(std::move(items), List::Kind::list, call.offset);
}

Value split_method(const Call& call, bool from_right) {
  const auto args = call.bind({"sep", "maxsplit"});
  const Text& text = *call.object.text();
  std::optional<int64_t> max_splits;
  if (args[1]) {
    const int64_t count = to_integer(call, *args[1], "maxsplit");
    if (count >= 0) max_splits = count;
  }
  // Paid before anything is made: a part costs far more than a byte.
  call.pay(text.cost() + text.size() * 16);
  if (is_absent(args[0])) return text_list(call, split(text, std::nullopt, max_splits, from_right));
  const Text& separator = to_string_arg(call, *args[0], "sep");
  if (separator.empty()) call.wrong("at an empty string");
  call.pay(find_all(text.bytes(), separator.bytes()).size() * sizeof(Text));
  return text_list(call, split(text, separator.bytes(), max_splits, from_right));
}

Value partition(const Call& call, bool from_right) {
  const auto args = plain_args(call, {"sep"}, 1);
  const Text& text = *call.object.text();
  const std::string& separator = to_string_arg(call, *args[0], "sep").bytes();
  if (separator.empty()) call.wrong("at an empty string");
  call.budget.pay_text(text, call.offset);
  const size_t at =
      from_right ? text.bytes().rfind(separator) : find_bytes(text.bytes(), separator, 0);
  std::vector<Value> parts;
  if (at == std::string::npos) {
    parts = {Value(text), Value(Text()), Value(Text())};
    if (from_right) std::swap(parts[0], parts[2]);
  } else {
    parts = {Value(text.substr(0, at)), Value(text.substr(at, at + separator.size())),
             Value(text.substr(at + separator.size(), text.size()))};
  }
  return call.evaluator.make_list(std::move(parts), List::Kind::tuple, call.offset);
}

Value find_method(const Call& call, bool from_right, bool must) {
  const auto args = plain_args(call, {"sub", "start", "end"}, 1);
  const Text& text = *call.object.text();
  const std::string& part = to_string_arg(call, *args[0], "sub").bytes();
  call.pay(text.size() * 16);
  const CharRange range = cut_chars(call, text, args[1], args[2]);
  const std::string& bytes = range.text.bytes();
  size_t at = std::string::npos;
  if (range.possible) at = from_right ? bytes.rfind(part) : find_bytes(bytes, part, 0);
  if (at == std::string::npos) {
    if (must) call.wrong("finds nothing");
    return Value(int64_t{-1});
  }
  return Value(range.begin + static_cast<int64_t>(count_chars(bytes.substr(0, at))));
}

Value count_method(const Call& call) {
  const auto args = plain_args(call, {"sub", "start", "end"}, 1);
  const std::string& part = to_string_arg(call, *args[0], "sub").bytes();
  call.pay(call.object.text()->size() * 16);
  const CharRange range = cut_chars(call, *call.object.text(), args[1], args[2]);
  if (!range.possible) return Value(int64_t{0});
  if (part.empty()) return Value(static_cast<int64_t>(count_chars(range.text.bytes())) + 1);
  return Value(static_cast<int64_t>(find_all(range.text.bytes(), part).size()));
}

Value replace_method(const Call& call) {
  const auto args = plain_args(call, {"old", "new", "count"}, 2);
  return replaced(call, *call.object.text(), to_string_arg(call, *args[0], "old"),
                  to_string_arg(call, *args[1], "new"), integer_or(call, args[2], "count", -1));
}

Value join_method(const Call& call) {
  const auto args = plain_args(call, {"iterable"}, 1);
  const Text& separator = *call.object.text();
  Text result;
  bool first = true;
  if (args[0]->is_undefined()) return Value(Text());
  for (const Value& item : call.evaluator.items(*args[0], call.offset)) {
    const Text& text = to_string_arg(call, item, "iterable");
    call.pay(text.cost() + separator.cost());
    if (!first) result.append(separator);
    result.append(text);
    first = false;
  }
  return Value(std::move(result));
}

Value pad_method(const Call& call, size_t left_share_percent) {
  const auto args = plain_args(call, {"width", "fillchar"}, 1);
  const Text fill = args[1] ? to_string_arg(call, *args[1], "fillchar") : Text(" ", true);
  if (count_chars(fill.bytes()) != 1) call.wrong("needs one character to fill with");
  return padded(call, *call.object.text(), to_integer(call, *args[0], "width"), left_share_percent,
                fill);
}

Value zfill_method(const Call& call) {
  const auto args = plain_args(call, {"width"}, 1);
  const Text& text = *call.object.text();
  const int64_t width = to_integer(call, *args[0], "width");
  const bool sign = text.bytes().starts_with('-') || text.bytes().starts_with('+');
  const Value digits = padded(call, text.substr(sign ? 1 : 0, text.size()),
                              std::max<int64_t>(width, 1) - (sign ? 1 : 0), 100, Text("0", true));
  if (!sign) return digits;
  Text result = text.substr(0, 1);
  result.append(*digits.text());
  return Value(std::move(result));
}

Value remove_affix(const Call& call, bool prefix) {
  const auto args = plain_args(call, {"affix"}, 1);
  const Text& text = *call.object.text();
  const std::string& part = to_string_arg(call, *args[0], "affix").bytes();
  call.budget.pay_text(text, call.offset);
  if (part.empty()) return call.object;
  if (prefix && text.bytes().starts_with(part)) return Value(text.substr(part.size(), text.size()));
  if (!prefix && text.bytes().ends_with(part)) {
    return Value(text.substr(0, text.size() - part.size()));
  }
  return call.object;
}

Value expand_tabs(const Call& call) {
  const auto args = call.bind({"tabsize"});
  const int64_t size = integer_or(call, args[0], "tabsize", 8);
  const Text& text = *call.object.text();
  Text result;
  int64_t column = 0;
  const std::vector<size_t> offsets = char_offsets(text.bytes());
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const char c = text.bytes()[offsets[i]];
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      call.pay(static_cast<size_t>(spaces));
      result.append(std::string(static_cast<size_t>(spaces), ' '), text.trusted_at(offsets[i]));
      column += spaces;
    } else {
      result.append(text, offsets[i], offsets[i + 1]);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return Value(std::move(result));
}

template <CharKind kKind>
Value is_method(const Call& call) {
  plain_args(call, {});
  return Value(all_of_kind(call.object.text()->bytes(), kKind));
}

Value is_alnum(const Call& call) {
  plain_args(call, {});
  const std::string& bytes = call.object.text()->bytes();
  const std::vector<size_t> offsets = char_offsets(bytes);
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::string_view c =
        std::string_view(bytes).substr(offsets[i], offsets[i + 1] - offsets[i]);
    if (!all_of_kind(c, CharKind::alpha) && !all_of_kind(c, CharKind::numeric)) return Value(false);
  }
  return Value(!bytes.empty());
}

Value is_ascii(const Call& call) {
  plain_args(call, {});
  const std::string& bytes = call.object.text()->bytes();
  return Value(std::all_of(bytes.begin(), bytes.end(), [](char c) { return (c & 0x80) == 0; }));
}

Value is_title(const Call& call) {
  plain_args(call, {});
  const Text& text = *call.object.text();
  call.budget.pay_text(text, call.offset);
  const std::string lower = to_case(text, Case::lower).bytes();
  const bool cased = lower != text.bytes() || to_case(text, Case::upper).bytes() != text.bytes();
  return Value(cased && title_words(text).bytes() == text.bytes());
}

template <Text (*kChange)(const Text&)>
Value change_method(const Call& call) {
  plain_args(call, {});
  call.pay(3 * call.object.text()->cost());
  return Value(kChange(*call.object.text()));
}

Text to_upper(const Text& text) { return to_case(text, Case::upper); }
Text to_lower(const Text& text) { return to_case(text, Case::lower); }

constexpr NamedBuiltin kMethods[] = {
    {"capitalize", change_method<capitalize>},
    {"center", [](const Call& call) { return pad_method(call, 50); }},
    {"count", count_method},
    {"endswith", [](const Call& call) { return affix(call, false); }},
    {"expandtabs", expand_tabs},
    {"find", [](const Call& call) { return find_method(call, false, false); }},
    {"format", format_braces},
    {"index", [](const Call& call) { return find_method(call, false, true); }},
    {"isalnum", is_alnum},
    {"isalpha", is_method<CharKind::alpha>},
    {"isascii", is_ascii},
    {"isdecimal", is_method<CharKind::decimal>},
    {"isdigit", is_method<CharKind::digit>},
    {"islower", is_method<CharKind::lower>},
    {"isnumeric", is_method<CharKind::numeric>},
    {"isspace", is_method<CharKind::space>},
    {"istitle", is_title},
    {"isupper", is_method<CharKind::upper>},
    {"join", join_method},
    {"ljust", [](const Call& call) { return pad_method(call, 0); }},
    {"lower", change_method<to_lower>},
    {"lstrip", [](const Call& call) { return strip_method(call, StripSide::left); }},
    {"partition", [](const Call& call) { return partition(call, false); }},
    {"removeprefix", [](const Call& call) { return remove_affix(call, true); }},
    {"removesuffix", [](const Call& call) { return remove_affix(call, false); }},
    {"replace", replace_method},
    {"rfind", [](const Call& call) { return find_method(call, true, false); }},
    {"rindex", [](const Call& call) { return find_method(call, true, true); }},
    {"rjust", [](const Call& call) { return pad_method(call, 100); }},
    {"rpartition", [](const Call& call) { return partition(call, true); }},
    {"rsplit", [](const Call& call) { return split_method(call, true); }},
    {"rstrip", [](const Call& call) { return strip_method(call, StripSide::right); }},
    {"split", [](const Call& call) { return split_method(call, false); }},
    {"splitlines",
     [](const Call& call) {
       const auto args = call.bind({"keepends"});
       call.pay(call.object.text()->cost() + call.object.text()->size() * sizeof(Text));
       return text_list(call, split_lines(*call.object.text(), truthy_or(args[0], false)));
     }},
    {"startswith", [](const Call& call) { return affix(call, true); }},
    {"strip", [](const Call& call) { return strip_method(call, StripSide::both); }},
    {"swapcase", change_method<swap_case>},
    {"title", change_method<title_words>},
    {"upper", change_method<to_upper>},
    {"zfill", zfill_method},
};

}  // namespace

CharRange cut_chars(const Call& call, const Text& text, const std::optional<Value>& begin,
                    const std::optional<Value>& end) {
  const std::vector<size_t> offsets = char_offsets(text.bytes());
  const auto length = static_cast<int64_t>(offsets.size()) - 1;
  const auto bound = [&](const std::optional<Value>& value, int64_t absent) {
    if (is_absent(value)) return absent;
    const int64_t i = to_integer(call, *value, "start or end");
    return i < 0 ? std::max<int64_t>(0, std::max(i, -length) + length) : i;
  };
  const int64_t from = bound(begin, 0);
  const int64_t to = std::min(bound(end, length), length);
  if (from > to) return {.begin = from, .possible = false};
  return {.text = text.substr(offsets[static_cast<size_t>(from)], offsets[static_cast<size_t>(to)]),
          .begin = from};
}

Value padded(const Call& call, const Text& text, int64_t width, size_t left_share_percent,
             const Text& fill) {
  call.budget.pay_text(text, call.offset);
  if (width > 0) {
    const auto wide = static_cast<size_t>(width);
    call.pay(wide > SIZE_MAX / 64 ? SIZE_MAX / 4 : wide * (fill.size() + 1));
  }
  return Value(pad(text, width, left_share_percent, fill));
}

Value replaced(const Call& call, const Text& text, const Text& from, const Text& to,
               int64_t count) {
  // Count first, so that a result too long is never built.
  call.budget.pay_text(text, call.offset);
  const size_t places =
      from.empty() ? count_chars(text.bytes()) + 1 : find_all(text.bytes(), from.bytes()).size();
  call.pay(places * (to.cost() + sizeof(Text::Run)));
  return Value(
      replace(text, from.bytes(), to, count < 0 ? std::nullopt : std::optional<int64_t>(count)));
}

Builtin find_text_method(std::string_view name) { return find_builtin(kMethods, name); }

Value call_text_method(const Call& call) { return find_text_method(call.name)(call); }

}  // namespace kvik::jinja
