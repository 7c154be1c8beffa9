// Cuts a template into text and the tokens of its tags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvik::jinja {

enum class TokenKind : uint8_t {
  data,         // value: text between tags, white space already controlled
  block_begin,  // {%
  block_end,
  print_begin,  // {{
  print_end,
  name,
  integer,  // value: digits, with a prefix like 0x
  real,
  string,  // value: escapes resolved
  op,      // value: the operator as written
  end,
};

struct Token {
  TokenKind kind;
  std::string value;
  size_t offset;  // in the source
};

// Line breaks become "\n", and one at the very end goes, as Jinja does by default.
std::string normalise_source(std::string_view source);

// The tokens of a normalised source, `end` last. Comments are gone; "-", "+", trim_blocks and
// lstrip_blocks have been applied. Throws TemplateError.
std::vector<Token> tokenise(std::string_view source);

}  // namespace kvik::jinja
