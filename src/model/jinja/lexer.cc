#include "model/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "model/jinja/error.h"
#include "model/jinja/strings.h"
#include "model/unicode.h"

namespace kvik::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex_digit(char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }
bool is_octal_digit(char c) { return c >= '0' && c <= '7'; }
bool is_bit(char c) { return c == '0' || c == '1'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) {
      lex_data();
      if (pos_ >= source_.size()) break;
      const char kind = source_[pos_ + 1];
      if (kind == '%' && skip_tag("raw", pos_)) {
        lex_raw();
      } else if (kind == '#') {
        skip_comment();
      } else {
        lex_tag(kind == '%');
      }
    }
    add(TokenKind::end, {}, source_.size());
    return std::move(tokens_);
  }

 private:
  char peek(size_t ahead = 0) const {
    return pos_ + ahead < source_.size() ? source_[pos_ + ahead] : '\0';
  }
  void add(TokenKind kind, std::string value, size_t offset) {
    tokens_.push_back({kind, std::move(value), offset});
  }

  // Text up to the next tag; leaves pos_ at the tag's brace.
  void lex_data() {
    const size_t begin = pos_;
    size_t tag = begin;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string_view::npos) {
        tag = source_.size();
        break;
      }
      const char next = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') break;
      ++tag;
    }
    pos_ = tag;
    std::string_view text = source_.substr(begin, tag - begin);
    if (tag < source_.size()) text = strip_before_tag(text, begin);
    if (!text.empty()) add(TokenKind::data, std::string(text), begin);
  }

  // What is left of the text before the tag at pos_.
  std::string_view strip_before_tag(std::string_view text, size_t begin) const {
    const char control = peek(2);
    if (control == '-') return strip_view(text, StripSide::right);
    if (control == '+' || peek(1) == '{') return text;
    // lstrip_blocks: white space between the start of the line and a block or comment.
    const size_t newline = text.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    const bool starts_line = line > 0 || begin == 0 || source_[begin - 1] == '\n';
    if (!starts_line || !strip_view(text.substr(line), StripSide::right).empty()) return text;
    return text.substr(0, line);
  }

  // After a tag's closing brace. `trim_newline`: trim_blocks applies to this kind of tag.
  void strip_after_tag(char control, bool trim_newline) {
    if (control == '-') {
      pos_ = source_.size() - strip_view(source_.substr(pos_), StripSide::left).size();
    } else if (control != '+' && trim_newline && peek() == '\n') {
      ++pos_;
    }
  }

  // The end of a tag of one word at `pos`, its closing sign and brace left to the caller: the
  // position of the sign or of "%}". 0 if the tag is another one.
  size_t skip_tag(std::string_view name, size_t pos) const {
    const auto skip_space = [&] {
      while (pos < source_.size()) {
        const internal::Utf8Char c = internal::decode_utf8(source_, pos);
        if (!c.valid || !internal::is_python_space(c.code_point)) return;
        pos += c.length;
      }
    };
    if (source_.substr(pos, 2) != "{%") return 0;
    pos += 2;
    if (pos < source_.size() && (source_[pos] == '-' || source_[pos] == '+')) ++pos;
    skip_space();
    if (source_.substr(pos, name.size()) != name) return 0;
    pos += name.size();
    skip_space();
    const size_t sign = pos < source_.size() && (source_[pos] == '-' || source_[pos] == '+');
    return source_.substr(pos + sign, 2) == "%}" ? pos : 0;
  }

  void lex_raw() {
    const size_t begin = pos_;
    const auto close = [&](size_t end) {
      const char sign = source_[end] == '%' ? '\0' : source_[end];
      pos_ = end + (sign == '\0' ? 2 : 3);
      strip_after_tag(sign, true);
    };
    const size_t opened = skip_tag("raw", begin);
    // Behind "raw" the line break stays.
    pos_ = opened + (source_[opened] == '%' ? 2 : 3);
    strip_after_tag(source_[opened] == '-' ? '-' : '\0', false);
    const size_t inside = pos_;
    for (size_t tag = inside; (tag = source_.find("{%", tag)) != std::string_view::npos; ++tag) {
      const size_t end = skip_tag("endraw", tag);
      if (end == 0) continue;
      pos_ = tag;
      const std::string_view text = strip_before_tag(source_.substr(inside, tag - inside), inside);
      if (!text.empty()) add(TokenKind::data, std::string(text), inside);
      close(end);
      return;
    }
    fail("a \"raw\" is never closed", begin);
  }

  void skip_comment() {
    const size_t begin = pos_;
    // In "{#-}" and the like the sign belongs to the opening.
    const size_t inside = begin + 2 + (peek(2) == '-' || peek(2) == '+' ? 1 : 0);
    const size_t close = source_.find("#}", inside);
    if (close == std::string_view::npos) fail("a comment is never closed", begin);
    const char before = close > inside ? source_[close - 1] : '\0';
    pos_ = close + 2;
    strip_after_tag(before, true);
  }

  void lex_tag(bool block) {
    const size_t begin = pos_;
    add(block ? TokenKind::block_begin : TokenKind::print_begin, {}, begin);
    pos_ += 2;
    if (peek() == '-' || peek() == '+') ++pos_;
    std::string open;  // brackets
    while (true) {
      while (pos_ < source_.size() && is_python_space_at()) pos_ += space_length_;
      if (pos_ >= source_.size()) fail("a tag is never closed", begin);
      if (open.empty() && close_tag(block)) return;
      lex_token(open);
    }
  }

  bool is_python_space_at() {
    const internal::Utf8Char c = internal::decode_utf8(source_, pos_);
    space_length_ = c.length;
    return c.valid && internal::is_python_space(c.code_point);
  }

  bool close_tag(bool block) {
    const char sign = peek() == '-' || (block && peek() == '+') ? peek() : '\0';
    const size_t brace = sign == '\0' ? 0 : 1;
    if (peek(brace) != (block ? '%' : '}') || peek(brace + 1) != '}') return false;
    add(block ? TokenKind::block_end : TokenKind::print_end, {}, pos_);
    pos_ += brace + 2;
    strip_after_tag(sign, block);
    return true;
  }

  void lex_token(std::string& open) {
    const char c = peek();
    const size_t begin = pos_;
    if (is_name_start(c)) {
      while (is_name_part(peek())) ++pos_;
      add(TokenKind::name, std::string(source_.substr(begin, pos_ - begin)), begin);
    } else if (is_digit(c)) {
      lex_number();
    } else if (c == '"' || c == '\'') {
      lex_string(c);
    } else {
      lex_operator(open);
    }
  }

  // Digits of a base, single underscores between them left out. Requires: a digit at pos_.
  std::string lex_digits(bool (*is_one)(char)) {
    std::string digits;
    for (; is_one(peek()) || (peek() == '_' && is_one(peek(1))); ++pos_) {
      if (peek() != '_') digits.push_back(peek());
    }
    return digits;
  }

  void lex_number() {
    const size_t begin = pos_;
    const char base = static_cast<char>(peek(1) | 0x20);
    const size_t first = peek(2) == '_' ? 3 : 2;
    if (peek() == '0' && (base == 'x' || base == 'o' || base == 'b')) {
      const auto is_one = base == 'x' ? is_hex_digit : base == 'o' ? is_octal_digit : is_bit;
      if (!is_one(peek(first))) fail("an integer without digits", begin);
      pos_ += first;
      add(TokenKind::integer, std::string{'0', base} + lex_digits(is_one), begin);
      if (is_name_part(peek())) fail("an unexpected character after an integer", pos_);
      return;
    }
    std::string digits = lex_digits(is_digit);
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';
    bool real = false;
    if (!after_dot && peek() == '.' && is_digit(peek(1))) {
      real = true;
      ++pos_;
      digits += '.' + lex_digits(is_digit);
    }
    const size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
    if (!after_dot && (peek() | 0x20) == 'e' && is_digit(peek(1 + sign))) {
      real = true;
      digits += std::string(source_.substr(pos_, 1 + sign));
      pos_ += 1 + sign;
      digits += lex_digits(is_digit);
    }
    if (is_name_part(peek())) fail("an unexpected character after a number", pos_);
    if (!real && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos) {
      fail("an integer with a leading zero", begin);
    }
    add(real ? TokenKind::real : TokenKind::integer, std::move(digits), begin);
  }

  void lex_string(char quote) {
    const size_t begin = pos_++;
    std::string value;
    while (true) {
      if (pos_ >= source_.size()) fail("a string is never closed", begin);
      const char c = source_[pos_++];
      if (c == quote) break;
      if (c == '\\') {
        lex_escape(value);
      } else {
        value.push_back(c);
      }
    }
    add(TokenKind::string, std::move(value), begin);
  }

  void lex_escape(std::string& value) {
    static constexpr std::string_view kNames = "nrtabfv\\'\"";
    static constexpr std::string_view kMeanings = "\n\r\t\a\b\f\v\\'\"";
    const size_t begin = pos_ - 1;
    const char c = peek();
    ++pos_;
    if (const size_t known = kNames.find(c); known != std::string_view::npos) {
      value.push_back(kMeanings[known]);
    } else if (c == 'x') {
      internal::append_utf8(lex_hex(2, begin), value);
    } else if (c == 'u') {
      internal::append_utf8(lex_hex(4, begin), value);
    } else if (c == 'U') {
      internal::append_utf8(lex_hex(8, begin), value);
    } else if (c == '\n') {
      // A line break after a backslash is left out.
    } else if (is_octal_digit(c)) {
      --pos_;
      uint32_t code_point = 0;
      for (int i = 0; i < 3 && is_octal_digit(peek()); ++i, ++pos_) {
        code_point = code_point * 8 + static_cast<uint32_t>(peek() - '0');
      }
      internal::append_utf8(code_point, value);
    } else if (c == 'N' || pos_ > source_.size()) {
      refuse("this escape in a string is not supported", begin);
    } else {
      value.push_back('\\');  // as in Python, an unknown escape stands for itself
      value.push_back(c);
    }
  }

  uint32_t lex_hex(int digits, size_t begin) {
    uint64_t code_point = 0;
    for (int i = 0; i < digits; ++i, ++pos_) {
      const char c = peek();
      uint32_t digit = 0;
      if (is_digit(c)) {
        digit = static_cast<uint32_t>(c - '0');
      } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
        digit = static_cast<uint32_t>((c | 0x20) - 'a' + 10);
      } else {
        fail("an escape in a string lacks hexadecimal digits", begin);
      }
      code_point = code_point << 4 | digit;
    }
    if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
      refuse("an escape in a string is not a character", begin);
    }
    return static_cast<uint32_t>(code_point);
  }

  void lex_operator(std::string& open) {
    static constexpr std::array<std::string_view, 6> kLong = {"==", "!=", "<=", ">=", "//", "**"};
    static constexpr std::string_view kShort = "+-*/%~<>=.,:|()[]{}";
    const std::string_view two = source_.substr(pos_, 2);
    std::string_view op;
    if (std::find(kLong.begin(), kLong.end(), two) != kLong.end()) {
      op = two;
    } else if (kShort.find(peek()) != std::string_view::npos) {
      op = source_.substr(pos_, 1);
    } else {
      fail("an unexpected character in a tag", pos_);
    }
    if (op == "(" || op == "[" || op == "{") {
      open.push_back(op == "(" ? ')' : op == "[" ? ']' : '}');
    } else if (op == ")" || op == "]" || op == "}") {
      if (open.empty() || open.back() != op[0])
        fail("an unexpected \"" + std::string(op) + "\"", pos_);
      open.pop_back();
    }
    add(TokenKind::op, std::string(op), pos_);
    pos_ += op.size();
  }

  std::string_view source_;
  size_t pos_ = 0;
  size_t space_length_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::string normalise_source(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      result.push_back(source[i]);
    } else {
      result.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

std::vector<Token> tokenise(std::string_view source) { return Lexer(source).run(); }

}  // namespace kvik::jinja
