// text.format(...), as Python's str has it.
#include <algorithm>
#include <cmath>
#include <string>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/format_spec.h"
#include "model/jinja/numbers.h"
#include "model/jinja/strings.h"
#include "model/unicode.h"

namespace kvik::jinja {
namespace {

Spec read_spec(const Text& text, size_t offset) {
  Spec spec;
  const std::string_view bytes = text.bytes();
  const std::string_view kAligns = "<>^=";
  size_t pos = 0;
  bool own_fill = false;
  const auto at = [&](size_t i) { return i < bytes.size() ? bytes[i] : '\0'; };
  const size_t first = bytes.empty() ? 0 : internal::decode_utf8(bytes, 0).length;
  if (at(first) != '\0' && kAligns.find(at(first)) != std::string_view::npos) {
    spec.fill = text.substr(0, first);
    spec.align = at(first);
    own_fill = true;
    pos = first + 1;
  } else if (at(0) != '\0' && kAligns.find(at(0)) != std::string_view::npos) {
    spec.align = at(pos++);
  }
  if (at(pos) == '+' || at(pos) == '-' || at(pos) == ' ') spec.sign = at(pos++);
  if (at(pos) == '#') {
    spec.alternate = true;
    ++pos;
  }
  if (at(pos) == '0') {
    ++pos;
    spec.zero = true;
    if (!own_fill) spec.fill = Text("0", true);
    if (spec.align == '\0') spec.align = '=';
  }
  spec.width = read_number(bytes, pos, offset);
  if (at(pos) == ',' || at(pos) == '_') spec.grouping = at(pos++);
  if (at(pos) == '.') {
    const size_t digits = ++pos;
    spec.precision = static_cast<int>(read_number(bytes, pos, offset));
    if (pos == digits) fail("a format without digits after \".\"", offset);
  }
  if (pos < bytes.size()) spec.type = at(pos++);
  if (pos != bytes.size()) fail("a format that \"format\" does not know", offset);
  return spec;
}

Text format_real(double value, Spec spec, size_t offset) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  const double size = std::fabs(value);
  std::string digits;
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  switch (spec.type) {
    case '\0':
      if (spec.precision < 0) {
        digits = float_repr(size);
      } else {
        digits = print_double(size, std::max(1, precision), 'g', spec.alternate);
        if (digits.find_first_not_of("0123456789") == std::string::npos) digits += ".0";
      }
      break;
    case '%':
      digits = print_double(size * 100, precision, 'f', spec.alternate) + "%";
      break;
    case 'n':
      digits = print_double(size, precision, 'g', spec.alternate);
      break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      digits = print_double(size, precision, spec.type, spec.alternate);
      break;
    default:
      fail("\"format\" does not know the kind \"" + std::string(1, spec.type) + "\" of a float",
           offset);
  }
  return number_text(negative, "", std::move(digits), spec, 3);
}

Text format_integer(int64_t value, Spec spec, size_t offset) {
  if (spec.type == '\0' || spec.type == 'n') spec.type = 'd';
  const std::string_view kReal = "eEfFgG%";
  if (kReal.find(spec.type) != std::string_view::npos) {
    return format_real(static_cast<double>(value), spec, offset);
  }
  if (spec.precision >= 0) fail("a precision for an integer", offset);
  if (spec.type == 'c') {
    if (value < 0 || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      fail("an integer that is no character", offset);
    }
    std::string bytes;
    internal::append_utf8(static_cast<uint32_t>(value), bytes);
    return with_width(Text(), Text(std::move(bytes), true), spec, '<');
  }
  const int base = spec.type == 'd'                       ? 10
                   : spec.type == 'o'                     ? 8
                   : spec.type == 'b'                     ? 2
                   : spec.type == 'x' || spec.type == 'X' ? 16
                                                          : 0;
  if (base == 0) {
    fail("\"format\" does not know the kind \"" + std::string(1, spec.type) + "\" of an integer",
         offset);
  }
  const std::string mark = spec.alternate && base != 10 ? std::string{'0', spec.type} : "";
  return number_text(value < 0, mark, digits_of(magnitude(value), base, spec.type == 'X'), spec,
                     base == 10 ? 3 : 4);
}

class BraceFormat {
 public:
  explicit BraceFormat(const Call& call) : call_(call) {}

  // Replacement fields of `text`; those inside a format are one level deeper.
  Text run(const Text& text, int depth) {
    if (depth > 2) call_.wrong("nests fields too deep");
    call_.budget.pay_text(text, call_.offset);
    const std::string& bytes = text.bytes();
    Text result;
    for (size_t pos = 0; pos < bytes.size();) {
      const char c = bytes[pos];
      if (c != '{' && c != '}') {
        const size_t next = std::min(bytes.find_first_of("{}", pos), bytes.size());
        result.append(text, pos, next);
        pos = next;
      } else if (pos + 1 < bytes.size() && bytes[pos + 1] == c) {
        result.append(text, pos, pos + 1);
        pos += 2;
      } else if (c == '}') {
        call_.wrong("meets a single \"}\"");
      } else {
        const size_t end = closing_brace(bytes, pos);
        result.append(field(text.substr(pos + 1, end), depth));
        pos = end + 1;
      }
    }
    return result;
  }

 private:
  size_t closing_brace(const std::string& bytes, size_t open) const {
    int level = 0;
    for (size_t pos = open; pos < bytes.size(); ++pos) {
      if (bytes[pos] == '{') ++level;
      if (bytes[pos] == '}' && --level == 0) return pos;
    }
    call_.wrong("meets a \"{\" that is never closed");
  }

  Text field(const Text& text, int depth) {
    const std::string& bytes = text.bytes();
    // A bracket keeps what would end the name.
    size_t end = 0;
    for (bool inside = false; end < bytes.size(); ++end) {
      if (bytes[end] == '[') inside = true;
      if (bytes[end] == ']') inside = false;
      if (!inside && (bytes[end] == '!' || bytes[end] == ':')) break;
    }
    const Value value = find(bytes.substr(0, end));
    char conversion = '\0';
    if (end < bytes.size() && bytes[end] == '!') {
      if (end + 1 >= bytes.size()) call_.wrong("meets a \"!\" without a conversion");
      conversion = bytes[end + 1];
      end += 2;
      if (end < bytes.size() && bytes[end] != ':') call_.wrong("expects \":\" after a conversion");
    }
    const Text spec =
        end < bytes.size() ? run(text.substr(end + 1, text.size()), depth + 1) : Text();
    return formatted(value, conversion, spec);
  }

  Value find(const std::string& name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    const std::string first = name.substr(0, end);
    Value value;
    const bool digits =
        !first.empty() && first.find_first_not_of("0123456789") == std::string::npos;
    // A number with more behind it, as in {0.x}, does not count as one of these, as in Python.
    if (name.empty() || (digits && end == name.size())) {
      if (name.empty() ? numbered_ : next_ > 0) {
        call_.wrong("mixes fields with numbers and fields without");
      }
      numbered_ = !name.empty();
    }
    if (name.empty() || digits) {
      const size_t index =
          name.empty() ? next_++
                       : static_cast<size_t>(std::min<uint64_t>(SIZE_MAX / 2, number_of(first)));
      if (index >= call_.args.plain.size()) call_.wrong("lacks an argument");
      value = call_.args.plain[index];
    } else {
      const auto found = std::find_if(call_.args.named.begin(), call_.args.named.end(),
                                      [&](const auto& item) { return item.first == first; });
      if (found == call_.args.named.end()) call_.wrong("lacks the argument \"" + first + "\"");
      value = found->second;
    }
    for (size_t pos = end; pos < name.size();) {
      if (name[pos] == '.') {
        const size_t next = std::min(name.find_first_of(".[", pos + 1), name.size());
        value =
            call_.evaluator.attribute(value, name.substr(pos + 1, next - pos - 1), call_.offset);
        pos = next;
      } else {
        const size_t close = name.find(']', pos);
        if (name[pos] != '[' || close == std::string::npos) call_.wrong("meets a wrong name");
        const std::string key = name.substr(pos + 1, close - pos - 1);
        const bool index = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
        value = call_.evaluator.item(
            value, index ? Value(static_cast<int64_t>(number_of(key))) : Value(Text(key, true)),
            call_.offset);
        pos = close + 1;
      }
    }
    return value;
  }

  static uint64_t number_of(const std::string& digits) {
    return static_cast<uint64_t>(parse_integer(digits, 10).value.value_or(INT64_MAX));
  }

  Text formatted(const Value& value, char conversion, const Text& spec_text) {
    Value shown = value;
    if (conversion == 's') {
      shown = Value(call_.evaluator.text(value, call_.offset));
    } else if (conversion == 'r') {
      shown = Value(to_repr(value, call_.offset, call_.budget));
    } else if (conversion != '\0') {
      refuse("the conversion \"!" + std::string(1, conversion) + "\" is not supported",
             call_.offset);
    }
    if (spec_text.empty()) return call_.evaluator.text(shown, call_.offset);
    const Spec spec = read_spec(spec_text, call_.offset);
    call_.pay(static_cast<size_t>(spec.width) * (spec.fill.size() + 1) +
              static_cast<size_t>(std::max(0, spec.precision)) + 64);
    if (const Text* text = shown.text()) return format_text(*text, spec);
    if (const std::optional<int64_t> integer = as_integer(shown)) {
      return format_integer(*integer, spec, call_.offset);
    }
    if (shown.real() != nullptr) return format_real(*shown.real(), spec, call_.offset);
    call_.wrong("of " + std::string(shown.kind()) + " with a format");
  }

  Text format_text(Text text, const Spec& spec) const {
    if ((spec.type != '\0' && spec.type != 's') || spec.align == '=' || spec.sign != '-' ||
        spec.alternate || spec.grouping != '\0') {
      // A zero before the width fills strings on the right.
      if (!(spec.zero && spec.align == '=' && (spec.type == '\0' || spec.type == 's'))) {
        call_.wrong("of a string with a format for numbers");
      }
    }
    call_.budget.pay_text(text, call_.offset);
    if (spec.precision >= 0) {
      const std::vector<size_t> offsets = char_offsets(text.bytes());
      text = text.substr(
          0, offsets[std::min(offsets.size() - 1, static_cast<size_t>(spec.precision))]);
    }
    Spec plain = spec;
    if (plain.align == '=') plain.align = '<';
    return with_width(Text(), text, plain, '<');
  }

  const Call& call_;
  size_t next_ = 0;        // of the fields without a number
  bool numbered_ = false;  // a field had a number
};

}  // namespace

Value format_braces(const Call& call) {
  const Text& text = *call.object.text();
  return Value(BraceFormat(call).run(text, 1).with_markup(text.markup()));
}

}  // namespace kvik::jinja
