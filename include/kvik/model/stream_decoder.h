// Turns bytes that arrive token by token into valid UTF-8 text.
#pragma once

#include <string>
#include <string_view>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/model/tokenizer.h"

namespace kvik {

// `bytes` with each ill-formed part replaced by U+FFFD: one for each maximal subpart (Unicode 15.1,
// chapter 3.9), as Python's bytes.decode("utf-8", "replace") does.
KVIK_API std::string to_valid_utf8(std::string_view bytes);

// Holds back the start of a character until the rest of it has come. What it returns is always
// valid UTF-8, never a part of a character, and all of it joined, flush() included, equals
// to_valid_utf8(all bytes joined).
// One thread at a time. The tokenizer must outlive it.
class KVIK_API StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // Text that is complete now; often empty. An id out of range: invalid_argument, nothing changed.
  Result<std::string> push(TokenId id);
  std::string push_bytes(std::string_view bytes);

  // What was held back: one U+FFFD for a character that never became complete. The decoder is then
  // as new.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // at most 3 bytes
};

}  // namespace kvik
