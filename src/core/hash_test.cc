#include "core/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvik::internal {
namespace {

std::vector<std::byte> counted(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

// Of the package xxhash 4.1.0 of Python: each of the ways that XXH3 has for short and long inputs.
TEST(Hash, IsXxh3With128Bits) {
  const std::pair<size_t, const char*> vectors[] = {
      {0, "99aa06d3014798d86001c324468d497f"},    {1, "a6cd5e9392000f6ac44bdff4074eecdb"},
      {3, "e3b55f57945a17cf5f4299fc161c9cbb"},    {8, "e1e4432a62217fe4cfd50c61c8bb98c1"},
      {16, "72950631827607e2842812cc870dcae2"},   {17, "685bc458b37d057fc06e233df7729217"},
      {128, "14792fc3af88dc6c05321a0b64d67b41"},  {129, "dd5e74ac6b45f54ebc30b63382b09a3b"},
      {240, "65b5be86da5540e7c92b68e16f83bbb6"},  {241, "1da1cb61bcb8a2a102e8cd95421c6d02"},
      {1024, "d0ac1f7b93bf57b9e5d78bafa45b2aa5"}, {5000, "b92ec02c39d33ce7b418500fc42320ee"}};
  for (const auto& [size, digits] : vectors) {
    const std::vector<std::byte> bytes = counted(size);
    EXPECT_EQ(hex(hash_of(bytes)), digits) << size;
    Hasher hasher;
    hasher.add(bytes);
    EXPECT_EQ(hex(hasher.value()), digits) << size;
  }
  EXPECT_EQ(hex(hash_of(std::as_bytes(std::span("a", 1)))), "a96faf705af16834e6c632b61e964e1f");
}

TEST(Hash, IsTheSameForEveryCutIntoPieces) {
  const std::vector<std::byte> bytes = counted(5000);
  for (const size_t piece : {1U, 7U, 64U, 255U, 256U, 257U, 1024U, 4999U}) {
    Hasher hasher;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      hasher.add(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    }
    EXPECT_EQ(hasher.value(), hash_of(bytes)) << piece;
  }
}

TEST(Hash, OfNumbersAndTextsIsThatOfTheirBytes) {
  Hasher hasher;
  hasher.add_text("ab");
  hasher.add_number(0x0807060504030201);
  const char bytes[] = "ab\2\0\0\0\0\0\0\0\1\2\3\4\5\6\7\x8";
  EXPECT_EQ(hasher.value(), hash_of(std::as_bytes(std::span(bytes, 18))));
}

TEST(Hash, KeepsTheBordersOfTexts) {
  Hasher one, two;
  for (const char* text : {"ab", "c"}) one.add_text(text);
  for (const char* text : {"a", "bc"}) two.add_text(text);
  EXPECT_NE(one.value(), two.value());
}

}  // namespace
}  // namespace kvik::internal
