// The hand-written scanners against the regular expressions themselves, run by PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kvik/model/pre_tokenizer.h"
#include "model/unicode.h"

namespace kvik {
namespace {

using internal::CharClass;

// White_Space written out: PCRE2's \s has U+180E too.
constexpr const char* kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";

// Replaces "@" by the list of white space.
std::string with_spaces(std::string pattern) {
  for (size_t at; (at = pattern.find('@')) != std::string::npos;) pattern.replace(at, 1, kSpaces);
  return pattern;
}

const std::string kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^@\\p{L}\\p{N}]+|[@]+(?![^@])|[@]+";
const std::string kLlama =
    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
    "|\\p{N}{1,3}| ?[^@\\p{L}\\p{N}]+[\\r\\n]*|[@]*[\\r\\n]+|[@]+(?![^@])|[@]+";
const std::string kQwen =
    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
    "|\\p{N}| ?[^@\\p{L}\\p{N}]+[\\r\\n]*|[@]*[\\r\\n]+|[@]+(?![^@])|[@]+";

class Regex {
 public:
  explicit Regex(const std::string& pattern) {
    const std::string full = with_spaces(pattern);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(full.data()), full.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
    KVIK_CHECK(code_ != nullptr, "the pattern must compile");
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  // Cuts `text` into matches and what lies between them.
  std::vector<std::string> cut(const std::string& text) const {
    std::vector<std::string> pieces;
    size_t done = 0;
    while (done < text.size()) {
      const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                    text.size(), done, 0, match_.get(), nullptr);
      if (count < 0) break;
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match_.get());
      if (ends[0] > done) pieces.push_back(text.substr(done, ends[0] - done));
      pieces.push_back(text.substr(ends[0], ends[1] - ends[0]));
      done = ends[1];
    }
    if (done < text.size()) pieces.push_back(text.substr(done));
    return pieces;
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

std::vector<std::string> scan(PreTokenizer kind, const std::string& text) {
  std::vector<std::string> pieces;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = piece_end(kind, text, begin);
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

std::string utf8(uint32_t code_point) {
  std::string text;
  internal::append_utf8(code_point, text);
  return text;
}

bool is_surrogate(uint32_t c) { return c >= 0xD800 && c <= 0xDFFF; }

// True if the character matches on its own.
bool matches_first(const Regex& regex, uint32_t code_point) {
  return regex.cut(utf8(code_point) + "\x01").size() == 2;
}

TEST(CharClassOracle, ClassesAreThoseOfPcre2WhereItKnowsTheCharacter) {
  const Regex letter("\\p{L}"), number("\\p{N}"), space("[@]"), unassigned("\\p{Cn}");
  int newer = 0;
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (is_surrogate(c)) continue;
    if (matches_first(unassigned, c)) {
      newer += internal::char_class(c) != CharClass::other ? 1 : 0;
      continue;
    }
    const CharClass expected = matches_first(letter, c)   ? CharClass::letter
                               : matches_first(number, c) ? CharClass::number
                               : matches_first(space, c)  ? CharClass::space
                                                          : CharClass::other;
    ASSERT_EQ(internal::char_class(c), expected) << std::hex << c;
  }
  // Our table is of Unicode 15.1, Debian 12's PCRE2 of 14.0: letters and numbers added in between.
  RecordProperty("newer", newer);
  EXPECT_LE(newer, 5500);
}

class PreTokenizerOracle : public testing::Test {
 protected:
  PreTokenizerOracle() {
    // Characters on which the expressions turn, and a sample of each class from all planes.
    common_ = {"'",           "s",          "t",          "re",
               "ve",          "m",          "ll",         "d",
               "S",           "T",          "RE",         "Ve",
               "lL",          "D",          " ",          " ",
               " ",           "\n",         "\r",         "\t",
               "\v",          "\xC2\xA0",   "a",          "Z",
               "1",           "23",         "9",          ".",
               "!",           "-",          "(",          "\"",
               "'",           "l",          "r",          "v",
               "e",           utf8(0x3000), utf8(0x2028), utf8(0x85),
               utf8(0x180E),  utf8(0x200B), utf8(0x17F),  utf8(0x212A),
               utf8(0x301),   utf8(0x4F60), utf8(0xBD),   utf8(0x663),
               utf8(0x1F600), utf8(0x2581), utf8(0xFFFD), std::string(1, '\0'),
               utf8(0x1F)};
  }

  std::string random_character() {
    if (random_() % 8 != 0) return common_[random_() % common_.size()];
    while (true) {
      const auto c = static_cast<uint32_t>(random_() % (random_() % 2 == 0 ? 0x3000 : 0x20000));
      if (!is_surrogate(c) && !matches_first(unassigned_, c)) return utf8(c);
    }
  }

  std::string random_text() {
    std::string text;
    for (auto length = random_() % 40; length > 0; --length) {
      const std::string character = random_character();
      // Runs matter: repeat now and then.
      for (auto times = random_() % 6 == 0 ? 1 + random_() % 5 : 1; times > 0; --times) {
        text += character;
      }
    }
    return text;
  }

  std::mt19937 random_{42};
  std::vector<std::string> common_;
  Regex unassigned_{"\\p{Cn}"};  // in the Unicode version of PCRE2, which may be older than ours
};

constexpr int kRounds = 30000;

TEST_F(PreTokenizerOracle, Gpt2CutsAsItsExpression) {
  const Regex regex(kGpt2);
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = random_text();
    ASSERT_EQ(scan(PreTokenizer::gpt2, text), regex.cut(text)) << text;
  }
}

TEST_F(PreTokenizerOracle, SmollmCutsAsItsTwoExpressionsInARow) {
  const Regex numbers("\\p{N}"), words(kGpt2);
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = random_text();
    std::vector<std::string> expected;
    for (const std::string& stretch : numbers.cut(text)) {
      for (std::string& piece : words.cut(stretch)) expected.push_back(std::move(piece));
    }
    ASSERT_EQ(scan(PreTokenizer::smollm, text), expected) << text;
  }
}

TEST_F(PreTokenizerOracle, LlamaCutsAsItsExpression) {
  const Regex regex(kLlama);
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = random_text();
    ASSERT_EQ(scan(PreTokenizer::llama_bpe, text), regex.cut(text)) << text;
  }
}

TEST_F(PreTokenizerOracle, QwenCutsAsItsExpression) {
  const Regex regex(kQwen);
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = random_text();
    ASSERT_EQ(scan(PreTokenizer::qwen2, text), regex.cut(text)) << text;
  }
}

}  // namespace
}  // namespace kvik
