// The plain formats f32, f16, bf16: bit layout and scalar code.
//
// K line w of a tile: word of token t = dims [w*E, w*E + E) of that token.
// V line g*(16/E) + w:  word of dim d = tokens [w*E, w*E + E) of dim 16*g + d.
// E = elements per word; the first element is the lower half of the word (little endian).
#include <cstring>

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

template <KvCode kCode, DType kType, bool kIsKey>
void encode(std::byte* tile, int slot, const std::byte* row, int head_dim) noexcept {
  const int padded = kIsKey ? padded_dim_k(kCode, head_dim) : padded_dim_v(head_dim);
  for (int d = 0; d < padded; ++d) {
    std::byte* const to = tile + (kIsKey ? offset_k<kCode>(slot, d) : offset_v<kCode>(slot, d));
    const std::byte* const from = row + d * dtype_bytes(kType);
    if (d >= head_dim) {
      store_element<kCode>(to, 0.0f);
    } else if constexpr (kType == dtype_of(kCode)) {
      std::memcpy(to, from,
                  static_cast<size_t>(dtype_bytes(kType)));  // bits kept, NaN payloads too
    } else {
      store_element<kCode>(to, load_element<kType>(from));
    }
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
    case KvCode::bf16:
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
    case KvCode::bf16:
      return decode<KvCode::bf16, kIsKey>(tile, slot, row, head_dim);
  }
}

}  // namespace

bool encode_k_row(KvCode code, std::byte* tile, int slot, const std::byte* row, DType dtype,
                  int head_dim) noexcept {
  encode_row<true>(code, tile, slot, row, dtype, head_dim);
  return true;
}

bool encode_v_row(KvCode code, std::byte* tile, int slot, const std::byte* row, DType dtype,
                  int head_dim) noexcept {
  encode_row<false>(code, tile, slot, row, dtype, head_dim);
  return true;
}

void decode_k_row(KvCode code, const std::byte* tile, int slot, float* row, int head_dim) noexcept {
  decode_row<true>(code, tile, slot, row, head_dim);
}

void decode_v_row(KvCode code, const std::byte* tile, int slot, float* row, int head_dim) noexcept {
  decode_row<false>(code, tile, slot, row, head_dim);
}

}  // namespace kvik
