// A byte-level vocabulary small enough to follow by hand.
#pragma once

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

}  // namespace kvik::test
