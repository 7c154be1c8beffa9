// Packed rows in tiles: a row is encoded by its row codec, then its codes and scales are put into
// the slot's bits of the tile's lines.
#include "format/packed_tile.h"

#include <algorithm>
#include <cstring>

#include "format/bit_stream.h"
#include "format/row_math.h"
#include "kvik/core/check.h"
#include "kvik/format/packed_code.h"
#include "kvik/format/row_codec.h"
#include "kvik/format/tile.h"

namespace kvik {
namespace {

using internal::kChunk;
using internal::PackedFamily;
using internal::PackedTraits;
using internal::traits_of;

constexpr int kMaxCodes = kMaxHeadDim + kChunk;
// 8-bit codes with f16 scales and zero points per 32 elements are the longest rows.
constexpr int kMaxRowBytes = kMaxHeadDim + kMaxHeadDim / internal::kTurboQuantGroup * 4 + 4;

// ---- a packed row and its codes

void codes_of(const PackedTraits& traits, const std::byte* packed, int head_dim, uint8_t* codes) {
  if (traits.family != PackedFamily::trellis) {
    internal::unpack_bits(packed, head_dim, traits.bits, codes);
    return;
  }
  uint8_t u[kMaxCodes];
  const int up_bits = traits.bits - 1;
  internal::unpack_bits(packed, head_dim, up_bits, codes);
  internal::unpack_bits(packed + head_dim * up_bits / 8, head_dim, 1, u);
  for (int i = 0; i < head_dim; ++i) codes[i] = static_cast<uint8_t>(codes[i] | u[i] << up_bits);
}

void pack_codes(const PackedTraits& traits, const uint8_t* codes, int head_dim, std::byte* packed) {
  if (traits.family != PackedFamily::trellis) {
    internal::pack_bits(codes, head_dim, traits.bits, packed);
    return;
  }
  uint8_t up[kMaxCodes];
  uint8_t u[kMaxCodes];
  const int up_bits = traits.bits - 1;
  for (int i = 0; i < head_dim; ++i) {
    up[i] = static_cast<uint8_t>(codes[i] & ((1 << up_bits) - 1));
    u[i] = static_cast<uint8_t>(codes[i] >> up_bits);
  }
  internal::pack_bits(up, head_dim, up_bits, packed);
  internal::pack_bits(u, head_dim, 1, packed + head_dim * up_bits / 8);
}

// ---- codes and the bits of one plane

// Bits [shift, shift + bits) of the codes.
struct Plane {
  int bits, shift;

  uint32_t mask() const { return (1u << bits) - 1; }
};

// A lane of K is a token: its words belong to one row, and element i of the row is bits
// [i * bits % 32, + bits) of word i * bits / 32.
void put_key(const Plane& plane, std::byte* lines, int slot, const uint8_t* codes, int num_codes) {
  const int per_word = 32 / plane.bits;
  std::byte* to = lines + slot * 4;
  for (int i = 0; i < num_codes; i += per_word, to += kLineBytes) {
    const int count = std::min(per_word, num_codes - i);
    uint32_t word = 0;
    for (int j = 0; j < count; ++j) {
      word |= (static_cast<uint32_t>(codes[i + j]) >> plane.shift & plane.mask())
              << (j * plane.bits);
    }
    std::memcpy(to, &word, 4);
  }
}

void get_key(const Plane& plane, const std::byte* lines, int slot, int num_codes, uint8_t* codes) {
  const int per_word = 32 / plane.bits;
  const std::byte* from = lines + slot * 4;
  for (int i = 0; i < num_codes; i += per_word, from += kLineBytes) {
    uint32_t word;
    std::memcpy(&word, from, 4);
    const int count = std::min(per_word, num_codes - i);
    for (int j = 0; j < count; ++j) {
      const uint32_t bits = word >> (j * plane.bits) & plane.mask();
      codes[i + j] = static_cast<uint8_t>(codes[i + j] | bits << plane.shift);
    }
  }
}

// A lane of V is a dim: its words are shared by the tokens of the tile.
struct ValuePlace {
  int64_t line;
  int bit;
};
ValuePlace place_of(const Plane& plane, int slot, int chunk) {
  if (plane.bits == 1) return {chunk / 2, chunk % 2 * kChunk + slot};
  return {chunk * plane.bits / 2 + slot * plane.bits / 32, slot * plane.bits % 32};
}

void put_value(const Plane& plane, std::byte* lines, int slot, const uint8_t* codes,
               int num_codes) {
  for (int chunk = 0; chunk * kChunk < num_codes; ++chunk) {
    const ValuePlace place = place_of(plane, slot, chunk);
    std::byte* const line = lines + place.line * kLineBytes;
    uint32_t words[kTileLanes];
    std::memcpy(words, line, sizeof words);
    const uint32_t keep = ~(plane.mask() << place.bit);
    for (int lane = 0; lane < kTileLanes; ++lane) {
      const uint32_t code = codes[chunk * kChunk + lane];
      words[lane] = (words[lane] & keep) | (code >> plane.shift & plane.mask()) << place.bit;
    }
    std::memcpy(line, words, sizeof words);
  }
}

void get_value(const Plane& plane, const std::byte* lines, int slot, int num_codes,
               uint8_t* codes) {
  for (int chunk = 0; chunk * kChunk < num_codes; ++chunk) {
    const ValuePlace place = place_of(plane, slot, chunk);
    uint32_t words[kTileLanes];
    std::memcpy(words, lines + place.line * kLineBytes, sizeof words);
    for (int lane = 0; lane < kTileLanes; ++lane) {
      const uint32_t bits = words[lane] >> place.bit & plane.mask();
      uint8_t& code = codes[chunk * kChunk + lane];
      code = static_cast<uint8_t>(code | bits << plane.shift);
    }
  }
}

// ---- whole rows

// Copies the row's scales (or zero points) of `bytes` each between the row, where they follow each
// other, and the tile, where those of a token are 16 tokens apart.
void put_scales(const std::byte* row, std::byte* tile, int slot, int count, int bytes) {
  for (int g = 0; g < count; ++g) {
    std::memcpy(tile + (g * kTileTokens + slot) * bytes, row + g * bytes,
                static_cast<size_t>(bytes));
  }
}
void get_scales(const std::byte* tile, std::byte* row, int slot, int count, int bytes) {
  for (int g = 0; g < count; ++g) {
    std::memcpy(row + g * bytes, tile + (g * kTileTokens + slot) * bytes,
                static_cast<size_t>(bytes));
  }
}

// The row's padding is code 0, so that equal rows make equal tiles.
void import_row(KvCode code, bool is_key, std::byte* tile, int slot, const std::byte* packed,
                int head_dim) noexcept {
  const PackedTraits traits = traits_of(code);
  const int num_codes = internal::num_chunks(head_dim) * kChunk;
  uint8_t codes[kMaxCodes];
  codes_of(traits, packed, head_dim, codes);
  std::fill(codes + head_dim, codes + num_codes, uint8_t{0});
  std::byte* lines = tile;
  Plane plane{0, 0};
  for (const int bits : internal::planes_of(traits).bits) {
    if (bits == 0) break;
    plane.bits = bits;
    (is_key ? put_key : put_value)(plane, lines, slot, codes, num_codes);
    lines += internal::plane_bytes(bits, head_dim);
    plane.shift += bits;
  }
  const PackedRowLayout layout = packed_row_layout(code, head_dim);
  const int groups = internal::num_scale_groups(traits, head_dim);
  const std::byte* const scales = packed + layout.code_bytes;
  put_scales(scales, tile + internal::scales_offset(traits, head_dim), slot, groups,
             internal::scale_bytes(traits));
  if (layout.zero_bytes == 0) return;
  put_scales(scales + layout.scale_bytes, tile + internal::zeros_offset(traits, head_dim), slot,
             groups, 2);
}

void export_row(KvCode code, bool is_key, const std::byte* tile, int slot, std::byte* packed,
                int head_dim) noexcept {
  const PackedTraits traits = traits_of(code);
  const int num_codes = internal::num_chunks(head_dim) * kChunk;
  uint8_t codes[kMaxCodes] = {};
  const std::byte* lines = tile;
  Plane plane{0, 0};
  for (const int bits : internal::planes_of(traits).bits) {
    if (bits == 0) break;
    plane.bits = bits;
    (is_key ? get_key : get_value)(plane, lines, slot, num_codes, codes);
    lines += internal::plane_bytes(bits, head_dim);
    plane.shift += bits;
  }
  pack_codes(traits, codes, head_dim, packed);
  const PackedRowLayout layout = packed_row_layout(code, head_dim);
  const int groups = internal::num_scale_groups(traits, head_dim);
  std::byte* const scales = packed + layout.code_bytes;
  get_scales(tile + internal::scales_offset(traits, head_dim), scales, slot, groups,
             internal::scale_bytes(traits));
  if (layout.zero_bytes == 0) return;
  get_scales(tile + internal::zeros_offset(traits, head_dim), scales + layout.scale_bytes, slot,
             groups, 2);
}

void to_floats(const std::byte* row, DType dtype, int head_dim, float* floats) {
  for (int d = 0; d < head_dim; ++d) {
    if (dtype == DType::f32) {
      std::memcpy(floats + d, row + d * 4, 4);
    } else {
      const auto bits = internal::load_as<uint16_t>(row + d * 2);
      floats[d] = dtype == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
  }
}

size_t row_size(KvCode code, int head_dim) {
  return static_cast<size_t>(packed_row_bytes(code, head_dim));
}

}  // namespace

namespace internal {

bool encode_packed_row(KvCode code, bool is_key, std::byte* tile, int slot, const std::byte* row,
                       DType dtype, int head_dim) noexcept {
  float floats[kMaxHeadDim];
  std::byte packed[kMaxRowBytes];
  to_floats(row, dtype, head_dim, floats);
  if (!encode_row(code, {floats, static_cast<size_t>(head_dim)},
                  {packed, row_size(code, head_dim)})) {
    return false;
  }
  import_row(code, is_key, tile, slot, packed, head_dim);
  return true;
}

void decode_packed_row(KvCode code, bool is_key, const std::byte* tile, int slot, float* row,
                       int head_dim, bool stored) noexcept {
  std::byte packed[kMaxRowBytes];
  export_row(code, is_key, tile, slot, packed, head_dim);
  const std::span<const std::byte> bytes(packed, row_size(code, head_dim));
  const std::span<float> values(row, static_cast<size_t>(head_dim));
  stored ? decode_stored_row(code, bytes, values) : decode_row(code, bytes, values);
}

}  // namespace internal

int64_t packed_tile_bytes(KvCode code, int head_dim) noexcept {
  return internal::tile_bytes(traits_of(code), head_dim);
}

void import_k_row(KvCode code, std::byte* tile, int slot, std::span<const std::byte> packed,
                  int head_dim) noexcept {
  KVIK_CHECK(packed.size() == row_size(code, head_dim), "packed is not packed_row_bytes long");
  import_row(code, true, tile, slot, packed.data(), head_dim);
}
void import_v_row(KvCode code, std::byte* tile, int slot, std::span<const std::byte> packed,
                  int head_dim) noexcept {
  KVIK_CHECK(packed.size() == row_size(code, head_dim), "packed is not packed_row_bytes long");
  import_row(code, false, tile, slot, packed.data(), head_dim);
}
void export_k_row(KvCode code, const std::byte* tile, int slot, std::span<std::byte> packed,
                  int head_dim) noexcept {
  KVIK_CHECK(packed.size() == row_size(code, head_dim), "packed is not packed_row_bytes long");
  export_row(code, true, tile, slot, packed.data(), head_dim);
}
void export_v_row(KvCode code, const std::byte* tile, int slot, std::span<std::byte> packed,
                  int head_dim) noexcept {
  KVIK_CHECK(packed.size() == row_size(code, head_dim), "packed is not packed_row_bytes long");
  export_row(code, false, tile, slot, packed.data(), head_dim);
}

}  // namespace kvik
