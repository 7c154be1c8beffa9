#include "format/bit_stream.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/random.h"

namespace kvik::internal {
namespace {

// Bit `at` of the stream, by the definition: bit 0 is the lowest bit of byte 0.
bool bit_at(const std::vector<std::byte>& stream, int at) {
  return (static_cast<unsigned>(stream[static_cast<size_t>(at / 8)]) >> (at % 8) & 1u) != 0;
}

TEST(BitStream, EveryCodeOfEveryWidthOwnsItsBitsAndComesBack) {
  for (int bits = 1; bits <= 8; ++bits) {
    // Every code at every alignment: a run of all codes, shifted by 0..7 codes.
    const int num_codes = 1 << bits;
    for (int shift = 0; shift < 8; ++shift) {
      std::vector<uint8_t> codes(static_cast<size_t>(8 * num_codes));
      for (size_t i = 0; i < codes.size(); ++i) {
        codes[i] = static_cast<uint8_t>((i + static_cast<size_t>(shift) * (i / 8)) %
                                        static_cast<size_t>(num_codes));
      }
      const auto count = static_cast<int>(codes.size());
      std::vector<std::byte> stream(codes.size() * static_cast<size_t>(bits) / 8, std::byte{0xff});
      pack_bits(codes.data(), count, bits, stream.data());
      for (int i = 0; i < count * bits; ++i) {
        ASSERT_EQ(bit_at(stream, i), (codes[static_cast<size_t>(i / bits)] >> (i % bits) & 1) != 0)
            << bits << " bits, stream bit " << i;
      }
      std::vector<uint8_t> back(codes.size());
      unpack_bits(stream.data(), count, bits, back.data());
      EXPECT_EQ(back, codes) << bits;
    }
  }
}

TEST(BitStream, AnyBytesComeBackAsTheyWere) {
  for (int bits = 1; bits <= 8; ++bits) {
    std::vector<std::byte> stream(static_cast<size_t>(64 * bits));
    for (size_t i = 0; i < stream.size(); ++i) {
      stream[i] = static_cast<std::byte>(test::below(static_cast<uint64_t>(bits), i, 256));
    }
    std::vector<uint8_t> codes(512);
    unpack_bits(stream.data(), 512, bits, codes.data());
    std::vector<std::byte> back(stream.size());
    pack_bits(codes.data(), 512, bits, back.data());
    EXPECT_EQ(back, stream) << bits;
  }
}

}  // namespace
}  // namespace kvik::internal
