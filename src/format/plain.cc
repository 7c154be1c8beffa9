// The plain formats f32, f16, bf16: bit layout and scalar code. The packed ones: packed_tile.cc.
//
// K line w of a tile: word of token t = dims [w*E, w*E + E) of that token.
// V line g*(16/E) + w:  word of dim d = tokens [w*E, w*E + E) of dim 16*g + d.
// E = elements per word; the first element is the lower half of the word (little endian).
#include <cstring>

#include "format/packed_tile.h"
#include "kvik/format/tile.h"

namespace kvik {
namespace {

template <DType kType>
float load_element(const std::byte* p) noexcept {
  if constexpr (kType == DType::f32) {
    float x;
    std::memcpy(&x, p, sizeof x);
    return x;
  } else {
    uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return kType == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
}

template <KvCode kCode>
void store_element(std::byte* p, float x) noexcept {
  if constexpr (kCode == KvCode::f32) {
    std::memcpy(p, &x, sizeof x);
  } else {
    const uint16_t bits = kCode == KvCode::f16 ? f32_to_f16(x) : f32_to_bf16(x);
    std::memcpy(p, &bits, sizeof bits);
  }
}

constexpr DType dtype_of(KvCode code) {
  return code == KvCode::f32 ? DType::f32 : code == KvCode::f16 ? DType::f16 : DType::bf16;
}

// Byte of element d of slot t in a K tile, and of a V tile.
template <KvCode kCode>
constexpr int64_t offset_k(int slot, int d) {
  constexpr int kStep = elements_per_word(kCode);
  return d / kStep * kLineBytes + slot * 4 + d % kStep * kv_code_bytes(kCode);
}
template <KvCode kCode>
constexpr int64_t offset_v(int slot, int d) {
  constexpr int kStep = elements_per_word(kCode);
  const int64_t line = static_cast<int64_t>(d / kTileLanes) * (kTileTokens / kStep) + slot / kStep;
  return line * kLineBytes + d % kTileLanes * 4 + slot % kStep * kv_code_bytes(kCode);
}

// The row as the format stores its elements, `padded` of them, the padding zero.
template <KvCode kCode, DType kType>
void convert(const std::byte* row, int head_dim, int padded, std::byte* stored) noexcept {
  constexpr int64_t kBytes = kv_code_bytes(kCode);
  if constexpr (kType == dtype_of(kCode)) {
    // Bits are kept, NaN payloads too.
    std::memcpy(stored, row, static_cast<size_t>(head_dim * kBytes));
  } else {
    for (int d = 0; d < head_dim; ++d) {
      store_element<kCode>(stored + d * kBytes, load_element<kType>(row + d * dtype_bytes(kType)));
    }
  }
  std::memset(stored + head_dim * kBytes, 0, static_cast<size_t>((padded - head_dim) * kBytes));
}

// One word of every K line.
void scatter_k(const std::byte* stored, int64_t num_words, std::byte* tile, int slot) noexcept {
  for (int64_t w = 0; w < num_words; ++w) {
    std::memcpy(tile + w * kLineBytes + slot * 4, stored + w * 4, 4);
  }
}

// Puts 16 halves into the lower or upper halves of a line's words. The other halves, another
// token's, are written back as they were: faster than 16 stores of two bytes, so one thread at a
// time writes a head.
template <bool kUpper>
void merge_halves(const std::byte* halves, std::byte* line) noexcept {
  uint32_t words[kTileLanes];
  uint16_t h[kTileLanes];
  std::memcpy(words, line, sizeof words);
  std::memcpy(h, halves, sizeof h);
  for (int d = 0; d < kTileLanes; ++d) {
    words[d] = kUpper ? (words[d] & 0xffffu) | (static_cast<uint32_t>(h[d]) << 16)
                      : (words[d] & 0xffff0000u) | h[d];
  }
  std::memcpy(line, words, sizeof words);
}

// One line of every group of 16 dims: whole words in f32, else this token's half of each word.
template <KvCode kCode>
void scatter_v(const std::byte* stored, int64_t num_groups, std::byte* tile, int slot) noexcept {
  constexpr int kStep = elements_per_word(kCode);
  constexpr int64_t kGroupBytes = kTileTokens / kStep * kLineBytes;
  constexpr int64_t kStoredBytes = kTileLanes * kv_code_bytes(kCode);
  std::byte* const line = tile + slot / kStep * kLineBytes;
  for (int64_t g = 0; g < num_groups; ++g) {
    std::byte* const to = line + g * kGroupBytes;
    const std::byte* const from = stored + g * kStoredBytes;
    if constexpr (kStep == 1) {
      std::memcpy(to, from, static_cast<size_t>(kLineBytes));
    } else if (slot % 2 == 0) {
      merge_halves<false>(from, to);
    } else {
      merge_halves<true>(from, to);
    }
  }
}

template <KvCode kCode, DType kType, bool kIsKey>
void encode(std::byte* tile, int slot, const std::byte* row, int head_dim) noexcept {
  std::byte stored[(kMaxHeadDim + kTileLanes) * kv_code_bytes(kCode)];
  const int padded = kIsKey ? padded_dim_k(kCode, head_dim) : padded_dim_v(head_dim);
  if (head_dim <= 0) return;  // no bytes, and pointers may be null
  if (kType != dtype_of(kCode) || padded != head_dim) {
    convert<kCode, kType>(row, head_dim, padded, stored);
    row = stored;
  }
  if constexpr (kIsKey) {
    scatter_k(row, padded / elements_per_word(kCode), tile, slot);
  } else {
    scatter_v<kCode>(row, padded / kTileLanes, tile, slot);
  }
}

template <KvCode kCode, bool kIsKey>
void decode(const std::byte* tile, int slot, float* row, int head_dim) noexcept {
  for (int d = 0; d < head_dim; ++d) {
    row[d] = load_element<dtype_of(kCode)>(
        tile + (kIsKey ? offset_k<kCode>(slot, d) : offset_v<kCode>(slot, d)));
  }
}

template <KvCode kCode, bool kIsKey>
void encode_from(std::byte* tile, int slot, const std::byte* row, DType dtype,
                 int head_dim) noexcept {
  switch (dtype) {
    case DType::f32:
      return encode<kCode, DType::f32, kIsKey>(tile, slot, row, head_dim);
    case DType::f16:
      return encode<kCode, DType::f16, kIsKey>(tile, slot, row, head_dim);
    case DType::bf16:
      return encode<kCode, DType::bf16, kIsKey>(tile, slot, row, head_dim);
  }
}

template <bool kIsKey>
void encode_row(KvCode code, std::byte* tile, int slot, const std::byte* row, DType dtype,
                int head_dim) noexcept {
  switch (code) {
    case KvCode::f32:
      return encode_from<KvCode::f32, kIsKey>(tile, slot, row, dtype, head_dim);
    case KvCode::f16:
      return encode_from<KvCode::f16, kIsKey>(tile, slot, row, dtype, head_dim);
    default:
      return encode_from<KvCode::bf16, kIsKey>(tile, slot, row, dtype, head_dim);
  }
}

template <bool kIsKey>
void decode_row(KvCode code, const std::byte* tile, int slot, float* row, int head_dim) noexcept {
  switch (code) {
    case KvCode::f32:
      return decode<KvCode::f32, kIsKey>(tile, slot, row, head_dim);
    case KvCode::f16:
      return decode<KvCode::f16, kIsKey>(tile, slot, row, head_dim);
    default:
      return decode<KvCode::bf16, kIsKey>(tile, slot, row, head_dim);
  }
}

}  // namespace

bool encode_k_row(KvCode code, std::byte* tile, int slot, const std::byte* row, DType dtype,
                  int head_dim) noexcept {
  if (is_packed(code)) {
    return internal::encode_packed_row(code, true, tile, slot, row, dtype, head_dim);
  }
  encode_row<true>(code, tile, slot, row, dtype, head_dim);
  return true;
}

bool encode_v_row(KvCode code, std::byte* tile, int slot, const std::byte* row, DType dtype,
                  int head_dim) noexcept {
  if (is_packed(code)) {
    return internal::encode_packed_row(code, false, tile, slot, row, dtype, head_dim);
  }
  encode_row<false>(code, tile, slot, row, dtype, head_dim);
  return true;
}

void decode_k_row(KvCode code, const std::byte* tile, int slot, float* row, int head_dim) noexcept {
  if (is_packed(code)) {
    return internal::decode_packed_row(code, true, tile, slot, row, head_dim, false);
  }
  decode_row<true>(code, tile, slot, row, head_dim);
}

void decode_v_row(KvCode code, const std::byte* tile, int slot, float* row, int head_dim) noexcept {
  if (is_packed(code)) {
    return internal::decode_packed_row(code, false, tile, slot, row, head_dim, false);
  }
  decode_row<false>(code, tile, slot, row, head_dim);
}

void decode_stored_k_row(KvCode code, const std::byte* tile, int slot, float* row,
                         int head_dim) noexcept {
  if (is_packed(code)) {
    return internal::decode_packed_row(code, true, tile, slot, row, head_dim, true);
  }
  decode_row<true>(code, tile, slot, row, head_dim);
}

void decode_stored_v_row(KvCode code, const std::byte* tile, int slot, float* row,
                         int head_dim) noexcept {
  if (is_packed(code)) {
    return internal::decode_packed_row(code, false, tile, slot, row, head_dim, true);
  }
  decode_row<false>(code, tile, slot, row, head_dim);
}

}  // namespace kvik
