// Loads from bytes of a file, which are aligned to nothing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace kvik {

static_assert(std::endian::native == std::endian::little, "file contents are read in place");

// The value at p. Requires: sizeof(T) readable bytes.
template <class T>
T load_unaligned(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

}  // namespace kvik
