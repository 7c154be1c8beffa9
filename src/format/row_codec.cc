#include "kvik/format/row_codec.h"

#include <cmath>
#include <cstring>

#include "format/hadamard.h"
#include "format/packed_traits.h"
#include "format/row_families.h"
#include "kvik/core/check.h"
#include "kvik/format/kv_format.h"

namespace kvik {
namespace {

using internal::PackedFamily;
using internal::PackedTraits;
using internal::traits_of;

void check_sizes(KvCode code, size_t head_dim, size_t packed_bytes) noexcept {
  // packed_row_bytes refuses head dims that the code does not take.
  KVIK_CHECK(head_dim <= static_cast<size_t>(kMaxHeadDim), "a row longer than any code takes");
  KVIK_CHECK(
      static_cast<size_t>(packed_row_bytes(code, static_cast<int>(head_dim))) == packed_bytes,
      "a packed row whose size is not packed_row_bytes");
}

}  // namespace

bool encode_row(KvCode code, std::span<const float> row, std::span<std::byte> packed) noexcept {
  check_sizes(code, row.size(), packed.size());
  const PackedTraits traits = traits_of(code);
  const auto head_dim = static_cast<int>(row.size());
  switch (traits.family) {
    case PackedFamily::kv_quant:
      return internal::encode_kv_quant(traits, row.data(), head_dim, packed.data());
    case PackedFamily::turboquant_key:
      return internal::encode_turboquant_key(traits, row.data(), head_dim, packed.data());
    case PackedFamily::turboquant_value:
      return internal::encode_turboquant_value(traits, row.data(), head_dim, packed.data());
    case PackedFamily::scalar:
      return internal::encode_scalar(traits, row.data(), head_dim, packed.data());
    case PackedFamily::trellis:
      return internal::encode_trellis(traits, row.data(), head_dim, packed.data());
  }
  return false;
}

void decode_stored_row(KvCode code, std::span<const std::byte> packed,
                       std::span<float> row) noexcept {
  check_sizes(code, row.size(), packed.size());
  const PackedTraits traits = traits_of(code);
  const auto head_dim = static_cast<int>(row.size());
  switch (traits.family) {
    case PackedFamily::kv_quant:
      return internal::decode_kv_quant(traits, packed.data(), head_dim, row.data());
    case PackedFamily::turboquant_key:
      return internal::decode_turboquant_key(traits, packed.data(), head_dim, row.data());
    case PackedFamily::turboquant_value:
      return internal::decode_turboquant_value(traits, packed.data(), head_dim, row.data());
    case PackedFamily::scalar:
      return internal::decode_scalar(traits, packed.data(), head_dim, row.data());
    case PackedFamily::trellis:
      return internal::decode_trellis(traits, packed.data(), head_dim, row.data());
  }
}

void decode_row(KvCode code, std::span<const std::byte> packed, std::span<float> row) noexcept {
  decode_stored_row(code, packed, row);
  if (is_rotated(code)) internal::unrotate(row.data(), static_cast<int>(row.size()));
}

bool is_finite_row(KvCode code, std::span<const std::byte> packed, int head_dim) noexcept {
  check_sizes(code, static_cast<size_t>(head_dim), packed.size());
  const PackedRowLayout layout = packed_row_layout(code, head_dim);
  const std::span<const std::byte> numbers = packed.subspan(static_cast<size_t>(layout.code_bytes));
  if (traits_of(code).family == PackedFamily::kv_quant) {
    float scale = 0;
    std::memcpy(&scale, numbers.data(), sizeof scale);
    // The farthest code from zero is the lowest one.
    return std::isfinite(scale * static_cast<float>(1 << (traits_of(code).bits - 1)));
  }
  // f16 numbers; no product or sum of a few of them leaves f32.
  for (size_t i = 0; i < numbers.size(); i += 2) {
    uint16_t bits = 0;
    std::memcpy(&bits, numbers.data() + i, sizeof bits);
    if ((bits & 0x7c00u) == 0x7c00u) return false;
  }
  return true;
}

}  // namespace kvik
