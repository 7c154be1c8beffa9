// text % values, as Python's str has it.
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
    if (text_.markup()) refuse("\"%\" on escaped text is not supported", offset_);
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
      if (!size) fail("\"*\" needs an integer", offset_);
      if (*size > kMaxWidth || *size < -kMaxWidth) {
        refuse("a width or precision of more than " + std::to_string(kMaxWidth), offset_);
      }
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
      case 'a':
        refuse("\"%a\" is not supported", offset_);
      case 's':
      case 'r':
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

}  // namespace

Text format_percent(const Text& text, const Value& values, size_t offset, Budget& budget) {
  return PercentFormat(text, values, offset, budget).run();
}

}  // namespace kvik::jinja
