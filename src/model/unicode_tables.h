// The generated table behind unicode.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvik::internal {

inline constexpr size_t kNumUnicodeRuns = 1564;

// Runs of equal class in ascending order: first code point << 2 | CharClass. The first run starts
// at 0, the last one ends at U+10FFFF.
extern const std::array<uint32_t, kNumUnicodeRuns> kUnicodeRuns;

// "15.1.0"
extern const char* const kUnicodeVersion;

}  // namespace kvik::internal
