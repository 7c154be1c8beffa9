#include "terminal_text.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli.h"
#include "kvik/model/stream_decoder.h"

namespace kvik::cli {
namespace {

// The first character of a text.
struct Character {
  std::optional<uint32_t> code;  // none: a byte that is not UTF-8
  std::string_view bytes;
};

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t size = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
  const Character broken = {std::nullopt, text.substr(0, 1)};
  if (size == 0 || size > text.size()) return broken;
  const std::string_view bytes = text.substr(0, size);
  if (size > 1 && to_valid_utf8(bytes) != bytes) return broken;
  uint32_t code = size == 1 ? lead : lead & (0x7FU >> size);
  for (size_t i = 1; i < size; ++i) code = code << 6 | (byte(i) & 0x3FU);
  return {code, bytes};
}

bool is_control(uint32_t code) { return code < 0x20 || (code >= 0x7F && code <= 0x9F); }

// Unseen, or turning what is around it.
bool is_hidden(uint32_t code) {
  return code == 0xAD || code == 0x61C || code == 0x180E || (code >= 0x200B && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) ||
         code == 0xFEFF || (code >= 0xFFF9 && code <= 0xFFFB) ||
         (code >= 0xE0000 && code <= 0xE007F);
}

std::string written_out(const Character& character) {
  if (!character.code) {
    return format("\\x%02x", static_cast<unsigned char>(character.bytes[0]));
  }
  switch (*character.code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  if (*character.code < 0x80) return format("\\x%02x", *character.code);
  return format(*character.code > 0xFFFF ? "\\U%08x" : "\\u%04x", *character.code);
}

// `write` says what stands for a character.
template <typename Write>
std::string mapped(std::string_view text, Write write) {
  std::string result;
  while (!text.empty()) {
    const Character character = first_character(text);
    result += write(character);
    text.remove_prefix(character.bytes.size());
  }
  return result;
}

}  // namespace

std::string one_line(std::string_view text) {
  return mapped(text, [](const Character& character) {
    const bool stays =
        character.code && !is_control(*character.code) && !is_hidden(*character.code);
    return stays ? std::string(character.bytes) : written_out(character);
  });
}

std::string without_controls(std::string_view text) {
  return mapped(text, [](const Character& character) {
    const bool stays = character.code && (*character.code == '\n' || *character.code == '\t' ||
                                          !is_control(*character.code));
    return stays ? std::string(character.bytes) : written_out(character);
  });
}

std::string escaped_json(std::string_view json) {
  return mapped(json, [](const Character& character) {
    const uint32_t code = character.code.value_or(0xFFFD);
    if (code == '\n' || (!is_control(code) && !is_hidden(code))) {
      return std::string(character.bytes);
    }
    if (code <= 0xFFFF) return format("\\u%04x", code);
    const uint32_t above = code - 0x10000;
    return format("\\u%04x\\u%04x", 0xD800 + (above >> 10), 0xDC00 + (above & 0x3FF));
  });
}

std::string quoted(std::string_view text) {
  return "\"" +
         mapped(text,
                [](const Character& character) {
                  if (!character.code) return written_out(character);
                  const std::string json = escaped_json(nlohmann::json(character.bytes).dump());
                  return json.substr(1, json.size() - 2);
                }) +
         "\"";
}

std::string markdown_cell(std::string_view text) {
  return mapped(text, [](const Character& character) {
    const std::string written = one_line(character.bytes);
    return written == "|" || written == "\\" ? "\\" + written : written;
  });
}

size_t columns_of(std::string_view text) {
  size_t columns = 0;
  (void)mapped(text, [&](const Character& character) {
    const uint32_t code = character.code.value_or('?');
    const bool combines = (code >= 0x300 && code <= 0x36F) || (code >= 0xFE00 && code <= 0xFE0F);
    const bool is_wide = (code >= 0x1100 && code <= 0x115F) || (code >= 0x2E80 && code <= 0xA4CF) ||
                         (code >= 0xAC00 && code <= 0xD7A3) || (code >= 0xF900 && code <= 0xFAFF) ||
                         (code >= 0xFE30 && code <= 0xFE6F) || (code >= 0xFF00 && code <= 0xFF60) ||
                         (code >= 0x1F300 && code <= 0x1FAFF) ||
                         (code >= 0x20000 && code <= 0x3FFFD);
    columns += combines ? 0 : is_wide ? 2 : 1;
    return std::string();
  });
  return columns;
}

}  // namespace kvik::cli
