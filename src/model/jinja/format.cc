// text % values and text.format(...), as Python's str has them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/numbers.h"
#include "model/jinja/strings.h"
#include "model/unicode.h"

namespace kvik::jinja {
namespace {

// What stands between "%" or ":" and the kind of conversion.
struct Spec {
  Text fill{" ", true};
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false, zero = false;
  char grouping = '\0';
  int64_t width = 0;
  int precision = -1;
  char type = '\0';
};

constexpr int64_t kMaxWidth = 100000;

int64_t read_number(std::string_view text, size_t& pos, size_t offset) {
  int64_t number = 0;
  for (; pos < text.size() && text[pos] >= '0' && text[pos] <= '9'; ++pos) {
    number = number * 10 + (text[pos] - '0');
    if (number > kMaxWidth) refuse("a width or precision of more than 100000", offset);
  }
  return number;
}

// C's printf of a double. Requires: precision <= kMaxWidth.
std::string print_double(double value, int precision, char type, bool alternate) {
  if (std::isnan(value)) return std::isupper(type) != 0 ? "NAN" : "nan";
  if (std::isinf(value)) return std::isupper(type) != 0 ? "INF" : "inf";
  const std::string form = std::string("%") + (alternate ? "#" : "") + ".*" + type;
  const int size = std::snprintf(nullptr, 0, form.c_str(), precision, value);
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), form.c_str(), precision, value);
  text.resize(static_cast<size_t>(size));
  return text;
}

std::string digits_of(uint64_t value, int base, bool upper) {
  std::string digits;
  do {
    const auto digit = static_cast<char>(value % static_cast<uint64_t>(base));
    digits.insert(digits.begin(),
                  static_cast<char>(digit < 10 ? '0' + digit : (upper ? 'A' : 'a') + digit - 10));
    value /= static_cast<uint64_t>(base);
  } while (value > 0);
  return digits;
}

uint64_t magnitude(int64_t value) {
  return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

// Separators between groups of digits before the point.
std::string grouped(std::string digits, char separator, size_t group) {
  const size_t end = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  for (size_t at = end; at > group; at -= group) digits.insert(at - group, 1, separator);
  return digits;
}

Text with_width(const Text& prefix, const Text& body, const Spec& spec, char default_align) {
  Text whole = prefix;
  whole.append(body);
  const int64_t missing = spec.width - static_cast<int64_t>(count_chars(whole.bytes()));
  if (missing <= 0) return whole;
  const char align = spec.align != '\0' ? spec.align : default_align;
  const int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  Text result;
  if (align == '=') result.append(prefix);
  for (int64_t i = 0; i < before; ++i) result.append(spec.fill);
  result.append(align == '=' ? body : whole);
  for (int64_t i = before; i < missing; ++i) result.append(spec.fill);
  return result;
}

Text number_text(bool negative, const std::string& mark, std::string digits, const Spec& spec,
                 size_t group) {
  std::string prefix = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  prefix += mark;
  if (spec.grouping != '\0') {
    digits = grouped(std::move(digits), spec.grouping, group);
    // Zeros in front are grouped too.
    if (spec.align == '=' && spec.fill.bytes() == "0") {
      refuse("zeros in front of grouped digits are not supported", 0);
    }
  }
  return with_width(Text(prefix, true), Text(std::move(digits), true), spec, '>');
}

// --- % ---

class PercentFormat {
 public:
  PercentFormat(const Text& text, const Value& values, size_t offset, Budget& budget)
      : text_(text), bytes_(text.bytes()), values_(values), offset_(offset), budget_(budget) {
    if (values.list() != nullptr && values.list()->kind == List::Kind::tuple) {
      tuple_ = values.list();
    }
  }

  Text run() {
    budget_.pay_text(text_, offset_);
    while (pos_ < bytes_.size()) {
      const size_t percent = std::min(bytes_.find('%', pos_), bytes_.size());
      result_.append(text_, pos_, percent);
      pos_ = percent;
      if (pos_ < bytes_.size()) convert();
    }
    const bool all_used = tuple_ != nullptr
                              ? next_ == tuple_->items.size()
                              : next_ > 0 || used_names_ || values_.dict() != nullptr ||
                                    values_.list() != nullptr || values_.is_undefined();
    if (!all_used) fail("not all arguments of \"%\" are used", offset_);
    return std::move(result_).with_markup(text_.markup());
  }

 private:
  Value next_value() {
    if (tuple_ == nullptr && next_ == 0) {
      ++next_;
      return values_;
    }
    if (tuple_ == nullptr || next_ == tuple_->items.size()) {
      fail("not enough arguments for \"%\"", offset_);
    }
    return tuple_->items[next_++];
  }

  int64_t read_size() {
    if (pos_ < bytes_.size() && bytes_[pos_] == '*') {
      ++pos_;
      const std::optional<int64_t> size = as_integer(next_value());
      if (!size || *size > kMaxWidth || *size < -kMaxWidth) fail("\"*\" needs an integer", offset_);
      return *size;
    }
    return read_number(bytes_, pos_, offset_);
  }

  void convert() {
    ++pos_;
    std::optional<Value> value;
    if (pos_ < bytes_.size() && bytes_[pos_] == '(') {
      if (values_.dict() == nullptr) fail("\"%(name)\" needs a mapping", offset_);
      const size_t end = bytes_.find(')', pos_);
      if (end == std::string::npos) fail("a \"%(\" is never closed", offset_);
      const Value* found = values_.dict()->find(bytes_.substr(pos_ + 1, end - pos_ - 1));
      if (found == nullptr) fail("the mapping of \"%\" lacks a key", offset_);
      value = *found;
      used_names_ = true;
      pos_ = end + 1;
    }
    Spec spec;
    for (;
         pos_ < bytes_.size() && std::string_view("-+ 0#").find(bytes_[pos_]) != std::string::npos;
         ++pos_) {
      const char c = bytes_[pos_];
      if (c == '-') spec.align = '<';
      if (c == '+' || (c == ' ' && spec.sign == '-')) spec.sign = c;
      spec.zero |= c == '0';
      spec.alternate |= c == '#';
    }
    spec.width = read_size();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (pos_ < bytes_.size() && bytes_[pos_] == '.') {
      ++pos_;
      spec.precision = static_cast<int>(std::max<int64_t>(0, read_size()));
    }
    while (pos_ < bytes_.size() &&
           std::string_view("hlL").find(bytes_[pos_]) != std::string::npos) {
      ++pos_;
    }
    if (pos_ >= bytes_.size()) fail("a \"%\" without a kind", offset_);
    spec.type = bytes_[pos_++];
    budget_.pay(
        static_cast<size_t>(spec.width) + static_cast<size_t>(std::max(0, spec.precision)) + 64,
        offset_);
    if (spec.type == '%') return result_.append("%", true);
    if (!value) value = next_value();
    append(*value, spec);
  }

  void append(const Value& value, Spec spec) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a':
        return append_text(
            spec.type == 's' ? to_text(value, offset_, budget_) : to_repr(value, offset_, budget_),
            spec);
      case 'c':
        return append_char(value, spec);
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return append_integer(value, spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        break;
      default:
        fail("\"%\" does not know the kind \"" + std::string(1, spec.type) + "\"", offset_);
    }
    const std::optional<double> real = as_double(value);
    if (!real) fail("a float is needed for \"%\", not " + std::string(value.kind()), offset_);
    append_number(std::signbit(*real) && !std::isnan(*real), "",
                  print_double(std::fabs(*real), spec.precision < 0 ? 6 : spec.precision, spec.type,
                               spec.alternate),
                  spec, std::isfinite(*real));
  }

  void append_text(Text text, const Spec& spec) {
    budget_.pay_text(text, offset_);
    if (spec.precision >= 0) {
      const std::vector<size_t> offsets = char_offsets(text.bytes());
      const size_t kept = std::min(offsets.size() - 1, static_cast<size_t>(spec.precision));
      text = text.substr(0, offsets[kept]);
    }
    result_.append(with_width(Text(), text, spec, '>'));
  }

  void append_char(const Value& value, const Spec& spec) {
    if (value.text() != nullptr && count_chars(value.text()->bytes()) == 1) {
      return append_text(*value.text(), spec);
    }
    const std::optional<int64_t> code = as_integer(value);
    if (!code || *code < 0 || *code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF)) {
      fail("\"%c\" needs a character", offset_);
    }
    std::string bytes;
    internal::append_utf8(static_cast<uint32_t>(*code), bytes);
    append_text(Text(std::move(bytes), true), spec);
  }

  void append_integer(const Value& value, const Spec& spec) {
    std::optional<int64_t> integer = as_integer(value);
    const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    if (const double* real = value.real(); real != nullptr && decimal) {
      if (!std::isfinite(*real)) fail("\"%d\" of a float that is no number", offset_);
      if (std::fabs(*real) >= 0x1p63) {
        refuse("an integer beyond 64 bits is not supported", offset_);
      }
      integer = static_cast<int64_t>(*real);
    }
    if (!integer) fail("a number is needed for \"%\", not " + std::string(value.kind()), offset_);
    const int base = decimal ? 10 : spec.type == 'o' ? 8 : 16;
    std::string digits = digits_of(magnitude(*integer), base, spec.type == 'X');
    if (static_cast<int64_t>(digits.size()) < spec.precision) {
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    }
    const std::string mark = spec.alternate && !decimal ? std::string{'0', spec.type} : "";
    append_number(*integer < 0, mark, std::move(digits), spec, true);
  }

  void append_number(bool negative, const std::string& mark, std::string digits, Spec spec,
                     bool finite) {
    if (spec.zero && spec.align != '<' && finite) {
      spec.align = '=';
      spec.fill = Text("0", true);
    }
    result_.append(number_text(negative, mark, std::move(digits), spec, 3));
  }

  const Text& text_;
  const std::string& bytes_;
  const Value& values_;
  const List* tuple_ = nullptr;
  size_t offset_;
  Budget& budget_;
  size_t pos_ = 0;
  size_t next_ = 0;
  bool used_names_ = false;
  Text result_;
};

// --- format ---

Spec read_spec(const Text& text, size_t offset) {
  Spec spec;
  const std::string_view bytes = text.bytes();
  const std::string_view kAligns = "<>^=";
  size_t pos = 0;
  const auto at = [&](size_t i) { return i < bytes.size() ? bytes[i] : '\0'; };
  const size_t first = bytes.empty() ? 0 : internal::decode_utf8(bytes, 0).length;
  if (at(first) != '\0' && kAligns.find(at(first)) != std::string_view::npos) {
    spec.fill = text.substr(0, first);
    spec.align = at(first);
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
    if (spec.align == '\0') {
      spec.align = '=';
      spec.fill = Text("0", true);
    }
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
    if (first.empty() || first.find_first_not_of("0123456789") == std::string::npos) {
      const size_t index =
          first.empty() ? next_++
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
        const bool digits =
            !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
        value = call_.evaluator.item(
            value, digits ? Value(static_cast<int64_t>(number_of(key))) : Value(Text(key, true)),
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
  size_t next_ = 0;
};

}  // namespace

Text format_percent(const Text& text, const Value& values, size_t offset, Budget& budget) {
  return PercentFormat(text, values, offset, budget).run();
}

Value format_braces(const Call& call) {
  const Text& text = *call.object.text();
  return Value(BraceFormat(call).run(text, 1).with_markup(text.markup()));
}

}  // namespace kvik::jinja
