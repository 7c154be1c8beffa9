#include "core/hash.h"

// The whole of xxHash is compiled into this file, so that nothing of it is linked or exported.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "kvik/core/check.h"

namespace kvik::internal {
namespace {

Hash128 bytes_of(const XXH128_hash_t& hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Hash128 bytes;
  static_assert(sizeof canonical.digest == sizeof bytes);
  std::memcpy(bytes.data(), canonical.digest, sizeof bytes);
  return bytes;
}

}  // namespace

std::string hex(const Hash128& hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : hash) {
    text += kDigits[std::to_integer<size_t>(byte) >> 4];
    text += kDigits[std::to_integer<size_t>(byte) & 15];
  }
  return text;
}

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  KVIK_CHECK(XXH3_128bits_reset(&state_->xxh) == XXH_OK, "a hash can be started");
}
Hasher::~Hasher() = default;

void Hasher::add(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  KVIK_CHECK(XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size()) == XXH_OK,
             "a hash takes any bytes");
}

void Hasher::add_text(std::string_view text) {
  add(std::as_bytes(std::span(text)));
  add_number(text.size());
}

void Hasher::add_number(uint64_t x) {
  std::array<std::byte, 8> bytes;
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(x >> (8 * i));
  add(bytes);
}

Hash128 Hasher::value() const { return bytes_of(XXH3_128bits_digest(&state_->xxh)); }

Hash128 hash_of(std::span<const std::byte> bytes) {
  return bytes_of(XXH3_128bits(bytes.data(), bytes.size()));
}

}  // namespace kvik::internal
