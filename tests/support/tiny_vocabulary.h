// A vocabulary of each kind, small enough to follow by hand.
#pragma once

#include <cstdio>
#include <string>

#include "kvik/model/vocabulary.h"
#include "model/unicode.h"

namespace kvik::test {

// The character that stands for `byte` in byte-level vocabularies.
inline std::string byte_char(int byte) {
  int shifted = 0;
  for (int b = 0; b <= byte; ++b) {
    const bool plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xFF && b != 0xAD);
    if (b == byte) {
      std::string piece;
      internal::append_utf8(static_cast<uint32_t>(plain ? b : 0x100 + shifted), piece);
      return piece;
    }
    if (!plain) ++shifted;
  }
  return {};
}

inline void add_token(Vocabulary& vocabulary, const std::string& piece, TokenType type) {
  vocabulary.pieces.push_back(piece);
  vocabulary.token_types.push_back(static_cast<int32_t>(type));
}

// Adds a merge and, if it is not there, the token it makes.
inline void add_merge(Vocabulary& vocabulary, const std::string& left, const std::string& right) {
  vocabulary.merges.push_back(left + " " + right);
  for (const std::string& piece : vocabulary.pieces) {
    if (piece == left + right) return;
  }
  add_token(vocabulary, left + right, TokenType::normal);
}

// Ids 0 to 255 are the bytes; 256 <|start|> and 257 <|end|> control, 258 <tag> user-defined; then
// merges: 259 "he", 260 "ll", 261 "hell", 262 "hello", 263 " h" 264 " hell".
inline Vocabulary tiny_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) add_token(vocabulary, byte_char(byte), TokenType::normal);
  add_token(vocabulary, "<|start|>", TokenType::control);
  add_token(vocabulary, "<|end|>", TokenType::control);
  add_token(vocabulary, "<tag>", TokenType::user_defined);
  add_merge(vocabulary, "h", "e");
  add_merge(vocabulary, "l", "l");
  add_merge(vocabulary, "he", "ll");
  add_merge(vocabulary, "hell", "o");
  const std::string space = byte_char(' ');
  add_merge(vocabulary, space, "h");
  add_merge(vocabulary, space, "hell");
  vocabulary.bos = 256;
  vocabulary.eos = 257;
  return vocabulary;
}

inline void add_scored(Vocabulary& vocabulary, const std::string& piece, float score,
                       TokenType type = TokenType::normal) {
  add_token(vocabulary, piece, type);
  vocabulary.scores.push_back(score);
}

// How a "llama" vocabulary spells the space.
inline constexpr const char* kSpaceMark = "\xE2\x96\x81";

// The token of a byte in tiny_spm_vocabulary().
inline TokenId spm_byte(int byte) { return 3 + byte; }

// 0 <unk> unknown, 1 <s> and 2 </s> control, 3 to 258 the bytes, then pieces, "_" for the space
// mark: 259 "_" 260 "h" 261 "e" 262 "l" 263 "o" 264 "ll" 265 "he" 266 "hell" 267 "hello" 268 "_h"
// 269 "_hell"; 270 <tag> user-defined. Adds a start but no space, both said outright.
inline Vocabulary tiny_spm_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  add_scored(vocabulary, "<unk>", 0, TokenType::unknown);
  add_scored(vocabulary, "<s>", 0, TokenType::control);
  add_scored(vocabulary, "</s>", 0, TokenType::control);
  for (int byte = 0; byte < 256; ++byte) {
    char piece[8];
    std::snprintf(piece, sizeof piece, "<0x%02X>", static_cast<unsigned>(byte));
    add_scored(vocabulary, piece, 0, TokenType::byte);
  }
  const std::string space = kSpaceMark;
  add_scored(vocabulary, space, -9);
  add_scored(vocabulary, "h", -10);
  add_scored(vocabulary, "e", -11);
  add_scored(vocabulary, "l", -12);
  add_scored(vocabulary, "o", -13);
  add_scored(vocabulary, "ll", -1);
  add_scored(vocabulary, "he", -2);
  add_scored(vocabulary, "hell", -3);
  add_scored(vocabulary, "hello", -5);
  add_scored(vocabulary, space + "h", -4);
  add_scored(vocabulary, space + "hell", -6);
  add_scored(vocabulary, "<tag>", 0, TokenType::user_defined);
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  vocabulary.unknown = 0;
  vocabulary.add_bos = true;
  vocabulary.add_space_prefix = false;
  return vocabulary;
}

}  // namespace kvik::test
