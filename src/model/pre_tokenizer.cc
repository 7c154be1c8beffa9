#include "kvik/model/pre_tokenizer.h"

#include <string>

#include "model/unicode.h"

namespace kvik {
namespace {

using internal::CharClass;

// What a scanner sees at a position; `end` stands for the end of the text.
enum class Seen : uint8_t { other, letter, number, space, end };

struct Char {
  Seen seen = Seen::end;
  size_t length = 0;  // bytes
};

// A stretch of text under one of the expressions. With `numbers_end` a number looks like the end of
// the text: that is how "smollm" sees it after the numbers have been cut out.
class Scanner {
 public:
  Scanner(std::string_view text, bool numbers_end) : text_(text), numbers_end_(numbers_end) {}

  Char at(size_t pos) const {
    if (pos >= text_.size()) return {};
    const internal::Utf8Char c = internal::decode_utf8(text_, pos);
    if (!c.valid) return {Seen::other, c.length};
    const CharClass char_class = internal::char_class(c.code_point);
    if (numbers_end_ && char_class == CharClass::number) return {};
    return {static_cast<Seen>(char_class), c.length};
  }

  bool is_byte(size_t pos, char byte) const { return pos < text_.size() && text_[pos] == byte; }
  bool is_newline(size_t pos) const { return is_byte(pos, '\n') || is_byte(pos, '\r'); }

  // End of the run of `seen` that holds at least the character at `pos`, if that is one.
  size_t run_end(size_t pos, Seen seen) const {
    for (Char c = at(pos); c.seen == seen; c = at(pos)) pos += c.length;
    return pos;
  }

  // 's 't 'm 'd 're 've 'll; 0 if there is none at `pos`.
  size_t contraction_length(size_t pos, bool any_case) const {
    if (!is_byte(pos, '\'')) return 0;
    const auto letter = [&](size_t i) -> char {
      if (i >= text_.size()) return '\0';
      const char c = text_[i];
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    };
    const char first = letter(pos + 1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    const char second = letter(pos + 2);
    const bool two_letters =
        ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
    return two_letters ? 3 : 0;
  }

  // \s+(?!\S)|\s+ : all of a run at the end of the text, else all but its last character, but at
  // least one. Requires: white space at `pos`.
  size_t space_end(size_t pos) const {
    size_t last = pos;
    size_t end = pos;
    for (Char c = at(end); c.seen == Seen::space; c = at(end)) {
      last = end;
      end += c.length;
    }
    return at(end).seen == Seen::end || last == pos ? end : last;
  }

 private:
  std::string_view text_;
  bool numbers_end_;
};

size_t gpt2_end(const Scanner& scanner, size_t begin) {
  if (const size_t length = scanner.contraction_length(begin, false)) return begin + length;
  const Char first = scanner.at(begin);
  const size_t body = scanner.is_byte(begin, ' ') ? begin + 1 : begin;
  const Char head = scanner.at(body);
  if (head.seen != Seen::space && head.seen != Seen::end) return scanner.run_end(body, head.seen);
  if (first.seen == Seen::space) return scanner.space_end(begin);
  return begin + first.length;
}

size_t smollm_end(std::string_view text, size_t begin) {
  const internal::Utf8Char c = internal::decode_utf8(text, begin);
  if (c.valid && internal::char_class(c.code_point) == CharClass::number) return begin + c.length;
  return gpt2_end(Scanner(text, true), begin);
}

// \s*[\r\n]+ : up to the last line break of the run of white space; `begin` if it has none.
size_t last_newline_end(const Scanner& scanner, size_t begin) {
  size_t end = begin;
  for (size_t pos = begin; scanner.at(pos).seen == Seen::space;) {
    const bool newline = scanner.is_newline(pos);
    pos += scanner.at(pos).length;
    if (newline) end = pos;
  }
  return end;
}

size_t number_end(const Scanner& scanner, size_t pos, int max_digits) {
  for (int digits = 0; digits < max_digits && scanner.at(pos).seen == Seen::number; ++digits) {
    pos += scanner.at(pos).length;
  }
  return pos;
}

// The expressions of llama_bpe and qwen2, which differ in how many digits go together.
size_t llama_bpe_end(const Scanner& scanner, size_t begin, int max_digits) {
  if (const size_t length = scanner.contraction_length(begin, true)) return begin + length;
  const Char first = scanner.at(begin);
  if (first.seen == Seen::letter) return scanner.run_end(begin, Seen::letter);
  if (first.seen == Seen::number) return number_end(scanner, begin, max_digits);
  const size_t second = begin + first.length;
  if (!scanner.is_newline(begin) && scanner.at(second).seen == Seen::letter) {
    return scanner.run_end(second, Seen::letter);
  }
  const size_t body = scanner.is_byte(begin, ' ') ? begin + 1 : begin;
  if (scanner.at(body).seen == Seen::other) {
    size_t end = scanner.run_end(body, Seen::other);
    while (scanner.is_newline(end)) ++end;
    return end;
  }
  const size_t newline_end = last_newline_end(scanner, begin);
  return newline_end > begin ? newline_end : scanner.space_end(begin);
}

}  // namespace

Result<PreTokenizer> pre_tokenizer_from_name(std::string_view name) {
  if (name == "gpt-2" || name == "gpt2") return PreTokenizer::gpt2;
  if (name == "smollm") return PreTokenizer::smollm;
  if (name == "llama-bpe" || name == "llama3" || name == "llama-v3") return PreTokenizer::llama_bpe;
  if (name == "qwen2") return PreTokenizer::qwen2;
  return unsupported("pre-tokenizer \"" + std::string(name) +
                     "\" is not supported; supported: gpt-2, llama-bpe, qwen2, smollm");
}

bool normalises_to_nfc(PreTokenizer kind) { return kind == PreTokenizer::qwen2; }

size_t piece_end(PreTokenizer kind, std::string_view text, size_t begin) {
  switch (kind) {
    case PreTokenizer::gpt2:
      return gpt2_end(Scanner(text, false), begin);
    case PreTokenizer::smollm:
      return smollm_end(text, begin);
    case PreTokenizer::llama_bpe:
      return llama_bpe_end(Scanner(text, false), begin, 3);
    case PreTokenizer::qwen2:
      return llama_bpe_end(Scanner(text, false), begin, 1);
  }
  KVIK_CHECK(false, "a value outside the enum PreTokenizer");
}

}  // namespace kvik
