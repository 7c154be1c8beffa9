// Tokens that stand for one byte, and bytes that no token stands for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kvik/core/status.h"

namespace kvik::internal {

// "<0x41>" -> 0x41; nullopt if `piece` is spelled otherwise.
std::optional<uint8_t> parse_byte_piece(std::string_view piece);

// What the encoders say about a byte at that offset of the text that has no token.
Status missing_byte(uint8_t byte, size_t offset);

}  // namespace kvik::internal
