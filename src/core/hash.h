// One hash for identities and checksums: XXH3 with 128 bits. It finds damage and tells models
// apart; it does not withstand somebody who looks for two inputs with one hash.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvik::internal {

// The bytes of a hash in the order in which its digits are written (the highest first).
using Hash128 = std::array<std::byte, 16>;

// 32 digits, a to f in lower case.
std::string hex(const Hash128& hash);

// Takes its input piece by piece; the cut into pieces does not change the hash.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(std::span<const std::byte> bytes);
  // The bytes and then their number, so that texts in a row keep their borders.
  void add_text(std::string_view text);
  // As 8 bytes, little endian.
  void add_number(uint64_t x);
  Hash128 value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Hash128 hash_of(std::span<const std::byte> bytes);

}  // namespace kvik::internal
