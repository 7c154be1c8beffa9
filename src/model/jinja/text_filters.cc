// Filters of strings and numbers.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/methods.h"
#include "model/jinja/numbers.h"
#include "model/jinja/strings.h"
#include "model/unicode.h"

namespace kvik::jinja {
namespace {

// The text itself, or what the value prints; undefined prints nothing.
Text object_text(const Call& call) {
  Text text = call.evaluator.text(call.object, call.offset);
  call.budget.pay_text(text, call.offset);
  return text;
}

template <Text (*kChange)(const Text&)>
Value change_filter(const Call& call) {
  call.bind({});
  const Text text = object_text(call);
  call.pay(2 * text.cost());
  return Value(kChange(text));
}

Text to_upper(const Text& text) { return to_case(text, Case::upper); }
Text to_lower(const Text& text) { return to_case(text, Case::lower); }

// Jinja cuts words at white space and opening brackets, unlike Python.
Text jinja_title(const Text& text) {
  Text result;
  bool first = true;
  const std::vector<size_t> offsets = char_offsets(text.bytes());
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const Text c = text.substr(offsets[i], offsets[i + 1]);
    const bool cut =
        c.size() == 1 && std::string_view("-({[<").find(c.bytes()[0]) != std::string_view::npos;
    if (cut || all_of_kind(c.bytes(), CharKind::space)) {
      result.append(c);
      first = true;
    } else {
      result.append(to_case(c, first ? Case::upper : Case::lower));
      first = false;
    }
  }
  return result;
}

Value trim_filter(const Call& call) {
  const auto args = call.bind({"chars"});
  const Text text = object_text(call);
  if (is_absent(args[0])) return Value(strip(text, StripSide::both));
  const std::string& set = to_string_arg(call, *args[0], "chars").bytes();
  call.pay(text.size() * (set.size() / 16));
  return Value(strip(text, StripSide::both, set));
}

Value replace_filter(const Call& call) {
  const auto args = call.bind({"old", "new", "count"}, 2);
  const int64_t count = is_absent(args[2]) ? -1 : to_integer(call, *args[2], "count");
  return replaced(call, object_text(call), call.evaluator.text(*args[0], call.offset),
                  call.evaluator.text(*args[1], call.offset), count);
}

Value indent_filter(const Call& call) {
  const auto args = call.bind({"width", "first", "blank"});
  Text indention(std::string(4, ' '), true);
  if (args[0] && args[0]->text() != nullptr) {
    indention = *args[0]->text();
  } else if (args[0]) {
    const int64_t width = to_integer(call, *args[0], "width");
    call.pay(static_cast<size_t>(std::max<int64_t>(0, width)));
    indention = Text(std::string(static_cast<size_t>(std::max<int64_t>(0, width)), ' '), true);
  }
  const bool blank = truthy_or(args[2], false);
  if (call.object.text() == nullptr) call.wrong_object();
  Text text = *call.object.text();
  text.append("\n", true);
  const std::vector<Text> lines = split_lines(text, false);
  call.pay(text.cost() + lines.size() * (indention.cost() + sizeof(Text)));
  Text result;
  if (truthy_or(args[1], false)) result.append(indention);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      result.append("\n", true);
      if (blank || !lines[i].empty()) result.append(indention);
    }
    result.append(lines[i]);
  }
  return Value(std::move(result).with_markup(text.markup()));
}

Value center_filter(const Call& call) {
  const auto args = call.bind({"width"});
  return padded(call, object_text(call), integer_or(call, args[0], "width", 80), 50,
                Text(" ", true));
}

Value truncate_filter(const Call& call) {
  const auto args = call.bind({"length", "killwords", "end", "leeway"});
  const int64_t length = integer_or(call, args[0], "length", 255);
  const Text end = args[2] ? to_string_arg(call, *args[2], "end") : Text("...", true);
  const int64_t leeway = is_absent(args[3]) ? 5 : to_integer(call, *args[3], "leeway");
  const auto end_length = static_cast<int64_t>(count_chars(end.bytes()));
  if (length < end_length || leeway < 0) call.wrong("with a length that \"end\" does not fit into");
  if (call.object.text() == nullptr) call.wrong_object();
  const Text& text = *call.object.text();
  call.pay(16 * text.size());
  const std::vector<size_t> offsets = char_offsets(text.bytes());
  if (static_cast<int64_t>(offsets.size()) - 1 - leeway <= length) return call.object;
  Text kept = text.substr(0, offsets[static_cast<size_t>(length - end_length)]);
  if (!truthy_or(args[1], false)) {
    const size_t space = kept.bytes().rfind(' ');
    if (space != std::string::npos) kept = kept.substr(0, space);
  }
  kept.append(end);
  return Value(std::move(kept));
}

Value wordcount_filter(const Call& call) {
  call.bind({});
  const std::string bytes = object_text(call).bytes();
  int64_t count = 0;
  bool inside = false;
  for (size_t pos = 0; pos < bytes.size();) {
    const internal::Utf8Char c = internal::decode_utf8(bytes, pos);
    const bool word = c.valid && (c.code_point == '_' || is_kind(c.code_point, CharKind::alpha) ||
                                  is_kind(c.code_point, CharKind::numeric));
    count += word && !inside;
    inside = word;
    pos += c.length;
  }
  return Value(count);
}

void append_quoted(const Text& text, bool slash_is_safe, Text& out) {
  static constexpr std::string_view kSafe = "_.-~";
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    std::string bytes;
    for (; begin < run.end; ++begin) {
      const char c = text.bytes()[begin];
      const bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
      if ((plain && (c & 0x80) == 0) || kSafe.find(c) != std::string_view::npos ||
          (slash_is_safe && c == '/')) {
        bytes.push_back(c);
      } else {
        char code[4];
        std::snprintf(code, sizeof code, "%%%02X", static_cast<unsigned char>(c));
        bytes += code;
      }
    }
    out.append(bytes, run.trusted);
  }
}

Value urlencode_filter(const Call& call) {
  call.bind({});
  Text result;
  if (call.object.text() != nullptr ||
      (call.object.dict() == nullptr && call.object.list() == nullptr)) {
    const Text text = object_text(call);
    call.pay(3 * text.size());
    append_quoted(text, true, result);
    return Value(std::move(result));
  }
  std::vector<Value> pairs;
  if (const Dict* dict = call.object.dict()) {
    dict->note_whole();
    for (const auto& [key, value] : dict->items) {
      pairs.push_back(call.evaluator.make_list({key, value}, List::Kind::tuple, call.offset));
    }
  } else {
    pairs = call.evaluator.items(call.object, call.offset);
  }
  for (const Value& pair : pairs) {
    const std::vector<Value> parts = call.evaluator.items(pair, call.offset);
    if (parts.size() != 2) call.wrong("needs pairs");
    if (!result.empty()) result.append("&", true);
    for (size_t i = 0; i < 2; ++i) {
      const Text text = call.evaluator.text(parts[i], call.offset);
      call.pay(4 * text.size());
      if (i == 1) result.append("=", true);
      // In a query a space is a plus, and a slash is quoted.
      Text quoted;
      append_quoted(text, false, quoted);
      result.append(replace(quoted, "%20", Text("+", true), std::nullopt));
    }
  }
  return Value(std::move(result));
}

Value xmlattr_filter(const Call& call) {
  const auto args = call.bind({"autospace"});
  const Dict* dict = call.object.dict();
  if (dict == nullptr) call.wrong_object();
  dict->note_whole();
  Text result;
  for (const auto& [key, value] : dict->items) {
    if (value.is_none() || value.is_undefined()) continue;
    const Text name = call.evaluator.text(key, call.offset);
    if (name.bytes().find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      call.wrong("of a key that is no name");
    }
    const Text text = call.evaluator.text(value, call.offset);
    call.pay(8 * (name.cost() + text.cost()));
    if (!result.empty() || truthy_or(args[0], true)) result.append(" ", true);
    result.append(escape_html(name));
    result.append("=\"", true);
    result.append(escape_html(text));
    result.append("\"", true);
  }
  return Value(std::move(result));
}

Value tojson_filter(const Call& call) {
  const auto args = call.bind({"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = truthy_or(args[0], false);
  style.sort_keys = truthy_or(args[3], false);
  if (!is_absent(args[1])) {
    if (args[1]->text() != nullptr) {
      style.indent = args[1]->text()->bytes();
    } else {
      const int64_t indent = to_integer(call, *args[1], "indent");
      call.pay(static_cast<size_t>(std::max<int64_t>(0, indent)));
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(0, indent)), ' ');
    }
  }
  if (!is_absent(args[2])) {
    const std::vector<Value> parts = call.evaluator.items(*args[2], call.offset);
    if (parts.size() != 2) call.wrong("needs two separators");
    style.item_separator = to_string_arg(call, parts[0], "separators");
    style.key_separator = to_string_arg(call, parts[1], "separators");
  }
  return Value(to_json(call.object, style, call.offset, call.budget));
}

Value int_filter(const Call& call) {
  const auto args = call.bind({"default", "base"});
  const Value otherwise = args[0] ? *args[0] : Value(int64_t{0});
  const int64_t base = integer_or(call, args[1], "base", 10);
  const auto from_real = [&](double real) {
    if (std::isnan(real) || std::isinf(real)) return otherwise;
    if (real >= 0x1p63 || real < -0x1p63) {
      refuse("an integer beyond 64 bits is not supported", call.offset);
    }
    return Value(static_cast<int64_t>(real));
  };
  if (call.object.is_undefined()) call.wrong_object();
  if (const Text* text = call.object.text()) {
    call.budget.pay_text(*text, call.offset);
    if (base < 0 || base > 36 || base == 1) call.wrong("with a base outside 2 to 36");
    const ParsedInteger parsed = parse_integer(text->bytes(), static_cast<int>(base));
    if (parsed.overflow) refuse("an integer beyond 64 bits is not supported", call.offset);
    if (parsed.value) return Value(*parsed.value);
    const std::optional<double> real = parse_float(text->bytes());
    return real ? from_real(*real) : otherwise;
  }
  if (const std::optional<int64_t> integer = as_integer(call.object)) return Value(*integer);
  if (call.object.real() != nullptr) return from_real(*call.object.real());
  return otherwise;
}

Value float_filter(const Call& call) {
  const auto args = call.bind({"default"});
  if (call.object.is_undefined()) call.wrong_object();
  std::optional<double> real = as_double(call.object);
  if (call.object.text() != nullptr) real = parse_float(call.object.text()->bytes());
  if (real) return Value(*real);
  return args[0] ? *args[0] : Value(0.0);
}

Value abs_filter(const Call& call) {
  call.bind({});
  if (call.object.real() != nullptr) return Value(std::fabs(*call.object.real()));
  const std::optional<int64_t> integer = as_integer(call.object);
  if (!integer) call.wrong_object();
  if (*integer == INT64_MIN) refuse("an integer beyond 64 bits is not supported", call.offset);
  return Value(*integer < 0 ? -*integer : *integer);
}

// Python's round(): to the nearest of the shortest decimals, ties of the exact value to even.
double round_half_even(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision < -300) return std::copysign(0.0, value);
  if (precision >= 0) {
    char text[700];
    std::snprintf(text, sizeof text, "%.*f", static_cast<int>(precision), value);
    return parse_float(text).value_or(value);
  }
  const double scale = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(value / scale) * scale;
}

Value round_filter(const Call& call) {
  const auto args = call.bind({"precision", "method"});
  const int64_t precision = integer_or(call, args[0], "precision", 0);
  const std::string method =
      args[1] ? call.evaluator.text(*args[1], call.offset).bytes() : "common";
  const std::optional<double> value = as_double(call.object);
  if (!value) call.wrong_object();
  if (method == "common") {
    if (as_integer(call.object)) {
      if (precision >= 0) return Value(*as_integer(call.object));
      const double rounded = round_half_even(*value, precision);
      if (rounded >= 0x1p63 || rounded < -0x1p63) {
        refuse("an integer beyond 64 bits is not supported", call.offset);
      }
      return Value(static_cast<int64_t>(rounded));
    }
    return Value(round_half_even(*value, precision));
  }
  if (method != "ceil" && method != "floor") call.wrong("knows common, ceil and floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = *value * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value format_filter(const Call& call) {
  const Text text = object_text(call);
  if (!call.args.named.empty()) {
    if (!call.args.plain.empty()) call.wrong("takes arguments with or without names, not both");
    Dict dict;
    for (auto& [name, value] : call.args.named) {
      call.evaluator.put(dict, Value(Text(name, true)), value, call.offset);
    }
    return Value(format_percent(text, Value(std::move(dict)), call.offset, call.budget));
  }
  const Value values = call.evaluator.make_list(call.args.plain, List::Kind::tuple, call.offset);
  return Value(format_percent(text, values, call.offset, call.budget));
}

Value escape_filter(const Call& call, bool force) {
  call.bind({});
  Text text = object_text(call);
  call.pay(4 * text.size());
  if (force) text = std::move(text).with_markup(false);
  return Value(escape_html(text));
}

Value string_filter(const Call& call) {
  call.bind({});
  return Value(object_text(call));
}

Value safe_filter(const Call& call) {
  call.bind({});
  return Value(object_text(call).with_markup(true));
}

Value not_supported(const Call& call) {
  refuse("the filter \"" + call.name + "\" is not supported", call.offset);
}

constexpr NamedBuiltin kFilters[] = {
    {"abs", abs_filter},
    {"capitalize", change_filter<capitalize>},
    {"center", center_filter},
    {"e", [](const Call& call) { return escape_filter(call, false); }},
    {"escape", [](const Call& call) { return escape_filter(call, false); }},
    {"filesizeformat", not_supported},
    {"float", float_filter},
    {"forceescape", [](const Call& call) { return escape_filter(call, true); }},
    {"format", format_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"lower", change_filter<to_lower>},
    {"pprint", not_supported},
    {"random", not_supported},
    {"replace", replace_filter},
    {"round", round_filter},
    {"safe", safe_filter},
    {"string", string_filter},
    {"striptags", not_supported},
    {"title", change_filter<jinja_title>},
    {"tojson", tojson_filter},
    {"trim", trim_filter},
    {"truncate", truncate_filter},
    {"upper", change_filter<to_upper>},
    {"urlencode", urlencode_filter},
    {"urlize", not_supported},
    {"wordcount", wordcount_filter},
    {"wordwrap", not_supported},
    {"xmlattr", xmlattr_filter},
};

}  // namespace

Builtin find_text_filter(std::string_view name) { return find_builtin(kFilters, name); }

}  // namespace kvik::jinja
