// Choices made by a fuzzer's bytes. When the bytes are used up, every choice is the first one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvik::test {

class ByteReader {
 public:
  ByteReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return next_ >= size_; }
  uint8_t byte() { return empty() ? uint8_t{0} : data_[next_++]; }
  bool flag() { return (byte() & 1) != 0; }
  // In [0, limit). Requires: 0 < limit <= 256.
  int below(int limit) { return byte() % limit; }

  uint64_t word(int num_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < num_bytes; ++i) value = value << 8 | byte();
    return value;
  }

  // A value that a size or a stride should not have, or one beside `old`.
  int64_t odd_value(int64_t old) {
    constexpr std::array<int64_t, 16> kOdd = {0,
                                              1,
                                              -1,
                                              2,
                                              15,
                                              16,
                                              -16,
                                              64,
                                              577,
                                              std::numeric_limits<int32_t>::max(),
                                              std::numeric_limits<int32_t>::min(),
                                              int64_t{1} << 32,
                                              int64_t{1} << 58,
                                              int64_t{1} << 62,
                                              std::numeric_limits<int64_t>::max(),
                                              std::numeric_limits<int64_t>::min()};
    const int kind = below(24);
    if (kind < 16) return kOdd[static_cast<size_t>(kind)];
    // Unsigned: the values beside the ends wrap.
    const auto bits = static_cast<uint64_t>(old);
    switch (kind) {
      case 16:
        return static_cast<int64_t>(bits + 1);
      case 17:
        return static_cast<int64_t>(bits - 1);
      case 18:
        return static_cast<int64_t>(bits * 2);
      case 19:
        return static_cast<int64_t>(bits + 64);
      case 20:
        return static_cast<int64_t>(bits - 64);
      case 21:
        return byte();
      case 22:
        return static_cast<int64_t>(word(4));
      default:
        return static_cast<int64_t>(word(8));
    }
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t next_ = 0;
};

}  // namespace kvik::test
