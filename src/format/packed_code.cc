#include "kvik/format/packed_code.h"

#include <string>

#include "format/packed_traits.h"
#include "kvik/core/check.h"
#include "kvik/format/kv_format.h"

namespace kvik {
namespace {

using internal::PackedFamily;
using internal::PackedTraits;
using internal::traits_of;

// The head dims a code takes: multiples of `step` from `least` to `most`.
struct HeadDims {
  int step, least, most;
};

HeadDims head_dims_of(KvCode code) {
  if (!is_packed(code)) return {1, 0, kMaxHeadDim};
  const PackedTraits traits = traits_of(code);
  switch (traits.family) {
    case PackedFamily::kv_quant: {
      // Whole bytes: 1, 4 and 2 codes fill them.
      const int step = traits.bits == 8 ? 1 : traits.bits == 6 ? 4 : 2;
      return {step, step, kMaxHeadDim};
    }
    case PackedFamily::turboquant_key:
    case PackedFamily::turboquant_value:
      return {internal::kTurboQuantGroup, internal::kTurboQuantGroup, kMaxHeadDim};
    case PackedFamily::scalar:
    case PackedFamily::trellis:
      return {16, 32, internal::kMaxRotatedHeadDim};
  }
  return {1, 1, 0};
}

bool takes(KvCode code, int head_dim) {
  const HeadDims dims = head_dims_of(code);
  return head_dim >= dims.least && head_dim <= dims.most && head_dim % dims.step == 0;
}

// "even", "multiples of 32", with the range.
std::string describe(const HeadDims& dims) {
  const std::string range =
      " from " + std::to_string(dims.least) + " to " + std::to_string(dims.most);
  if (dims.step == 1) return "head dims" + range;
  return "multiples of " + std::to_string(dims.step) + range;
}

// Packed codes of keys, of values or of either that take this head dim, then the plain ones.
std::string alternatives(bool for_keys, bool for_values, int head_dim) {
  std::string names;
  for (const KvCode other : all_packed_codes()) {
    const bool same_side = (for_keys && stores_keys(other)) || (for_values && stores_values(other));
    if (same_side && takes(other, head_dim)) {
      names += std::string(kv_code_name(other)) + ", ";
    }
  }
  return names + "f32, f16 and bf16";
}

Status check_for(KvCode code, int head_dim, bool for_keys, bool for_values) {
  if (takes(code, head_dim)) return {};
  std::string message = std::string(kv_code_name(code)) + " stores " +
                        describe(head_dims_of(code)) + ", and head_dim is " +
                        std::to_string(head_dim);
  if (head_dim >= 1 && head_dim <= kMaxHeadDim) {
    message += "; " + alternatives(for_keys, for_values, head_dim) + " store it";
  }
  return invalid_argument(std::move(message));
}

}  // namespace

int packed_code_bits(KvCode code) { return traits_of(code).bits; }

bool stores_keys(KvCode code) {
  return !is_packed(code) || traits_of(code).family != PackedFamily::turboquant_value;
}

bool stores_values(KvCode code) {
  return !is_packed(code) || traits_of(code).family != PackedFamily::turboquant_key;
}

bool is_rotated(KvCode code) {
  if (!is_packed(code)) return false;
  const PackedFamily family = traits_of(code).family;
  return family != PackedFamily::kv_quant && family != PackedFamily::turboquant_key;
}

Status check(KvCode code, int head_dim) {
  return check_for(code, head_dim, stores_keys(code), stores_values(code));
}

Status check_keys(KvCode code, int head_dim) {
  if (stores_keys(code)) return check_for(code, head_dim, true, false);
  return invalid_argument(std::string(kv_code_name(code)) + " stores values only; " +
                          alternatives(true, false, head_dim) + " store keys of head_dim " +
                          std::to_string(head_dim));
}

Status check_values(KvCode code, int head_dim) {
  if (stores_values(code)) return check_for(code, head_dim, false, true);
  return invalid_argument(std::string(kv_code_name(code)) + " stores keys only; " +
                          alternatives(false, true, head_dim) + " store values of head_dim " +
                          std::to_string(head_dim));
}

PackedRowLayout packed_row_layout(KvCode code, int head_dim) {
  KVIK_CHECK(is_packed(code) && takes(code, head_dim),
             "a packed row of a head_dim that its code does not take");
  const PackedTraits traits = traits_of(code);
  PackedRowLayout layout;
  layout.code_bytes = int64_t{head_dim} * traits.bits / 8;
  switch (traits.family) {
    case PackedFamily::kv_quant:
      layout.scale_bytes = 4;
      break;
    case PackedFamily::turboquant_key:
      layout.zero_bytes = head_dim / internal::kTurboQuantGroup * 2;
      [[fallthrough]];
    case PackedFamily::turboquant_value:
      layout.scale_bytes = head_dim / internal::kTurboQuantGroup * 2;
      break;
    case PackedFamily::scalar:
    case PackedFamily::trellis:
      layout.scale_bytes = 2;
      break;
  }
  return layout;
}

int64_t packed_row_bytes(KvCode code, int head_dim) {
  return packed_row_layout(code, head_dim).row_bytes();
}

}  // namespace kvik
