// What the codes of the packed formats are made of, for the codecs and kernels.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvik/format/kv_format.h"

namespace kvik::internal {

inline constexpr int kTurboQuantGroup = 32;     // elements that share a scale
inline constexpr int kMaxRotatedHeadDim = 512;  // of tq*, tcq*

enum class PackedFamily : uint8_t { kv_quant, turboquant_key, turboquant_value, scalar, trellis };

struct PackedTraits {
  PackedFamily family;
  int bits;
  bool is_signed;  // of the codes of turboquant_key
  std::string_view name;
};

// Requires: is_packed(code).
constexpr PackedTraits traits_of(KvCode code) {
  switch (code) {
    case KvCode::q8:
      return {PackedFamily::kv_quant, 8, true, "q8"};
    case KvCode::q6:
      return {PackedFamily::kv_quant, 6, true, "q6"};
    case KvCode::q4:
      return {PackedFamily::kv_quant, 4, true, "q4"};
    case KvCode::tqk_q8_0:
      return {PackedFamily::turboquant_key, 8, true, "tqk_q8_0"};
    case KvCode::tqk_uint8:
      return {PackedFamily::turboquant_key, 8, false, "tqk_uint8"};
    case KvCode::tqk_q5_0:
      return {PackedFamily::turboquant_key, 5, false, "tqk_q5_0"};
    case KvCode::tqk_q4_0:
      return {PackedFamily::turboquant_key, 4, false, "tqk_q4_0"};
    case KvCode::tqk_int2:
      return {PackedFamily::turboquant_key, 2, false, "tqk_int2"};
    case KvCode::tqv_q2_0:
      return {PackedFamily::turboquant_value, 2, false, "tqv_q2_0"};
    case KvCode::tqv_q3_0:
      return {PackedFamily::turboquant_value, 3, false, "tqv_q3_0"};
    case KvCode::tqv_q4_0:
      return {PackedFamily::turboquant_value, 4, false, "tqv_q4_0"};
    case KvCode::tqv_q5_0:
      return {PackedFamily::turboquant_value, 5, false, "tqv_q5_0"};
    case KvCode::tqv_q8_0:
      return {PackedFamily::turboquant_value, 8, false, "tqv_q8_0"};
    case KvCode::tq8:
      return {PackedFamily::scalar, 8, true, "tq8"};
    case KvCode::tq4:
      return {PackedFamily::scalar, 4, false, "tq4"};
    case KvCode::tq3:
      return {PackedFamily::scalar, 3, false, "tq3"};
    case KvCode::tq2:
      return {PackedFamily::scalar, 2, false, "tq2"};
    case KvCode::tcq4:
      return {PackedFamily::trellis, 4, false, "tcq4"};
    case KvCode::tcq3:
      return {PackedFamily::trellis, 3, false, "tcq3"};
    case KvCode::tcq2:
      return {PackedFamily::trellis, 2, false, "tcq2"};
    default:
      break;
  }
  return {PackedFamily::kv_quant, 8, true, "unknown"};
}

}  // namespace kvik::internal
