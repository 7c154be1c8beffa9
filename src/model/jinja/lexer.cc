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
      if (kind == '#') {
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
      lex_integer();
    } else if (c == '"' || c == '\'') {
      lex_string(c);
    } else {
      lex_operator(open);
    }
  }

  void lex_integer() {
    const size_t begin = pos_;
    std::string digits;
    for (; is_digit(peek()) || (peek() == '_' && is_digit(peek(1))); ++pos_) {
      if (peek() != '_') digits.push_back(peek());
    }
    const bool fraction = peek() == '.' && is_digit(peek(1));
    if (fraction || is_name_part(peek())) {
      refuse("a number that is not a plain decimal integer is not supported", begin);
    }
    if (digits.size() > 1 && digits[0] == '0') {
      fail("an integer with a leading zero", begin);
    }
    add(TokenKind::integer, std::move(digits), begin);
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
    } else if (is_digit(c) || c == 'N' || c == '\n' || c == '\0') {
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
