#include "kvik/format/packed_code.h"

#include <array>
#include <string>

#include "format/packed_traits.h"
#include "kvik/core/check.h"
#include "kvik/format/kv_format.h"

namespace kvik {
namespace {

using internal::PackedFamily;
using internal::PackedTraits;
using internal::traits_of;

constexpr std::array kCodes = {
    PackedCode::q8,        PackedCode::q6,       PackedCode::q4,       PackedCode::tqk_q8_0,
    PackedCode::tqk_uint8, PackedCode::tqk_q5_0, PackedCode::tqk_q4_0, PackedCode::tqk_int2,
    PackedCode::tqv_q2_0,  PackedCode::tqv_q3_0, PackedCode::tqv_q4_0, PackedCode::tqv_q5_0,
    PackedCode::tqv_q8_0,  PackedCode::tq8,      PackedCode::tq4,      PackedCode::tq3,
    PackedCode::tq2,       PackedCode::tcq4,     PackedCode::tcq3,     PackedCode::tcq2,
};

// The head dims a code takes: multiples of `step` from `least` to `most`.
struct HeadDims {
  int step, least, most;
};

HeadDims head_dims_of(PackedCode code) {
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

bool takes(PackedCode code, int head_dim) {
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

// Codes that could stand in for `code` at this head dim, the plain ones last.
std::string alternatives(PackedCode code, int head_dim) {
  std::string names;
  for (const PackedCode other : kCodes) {
    const bool same_side =
        (stores_keys(code) && stores_keys(other)) || (stores_values(code) && stores_values(other));
    if (same_side && takes(other, head_dim)) {
      names += std::string(packed_code_name(other)) + ", ";
    }
  }
  return names + "f32, f16 and bf16";
}

}  // namespace

std::span<const PackedCode> all_packed_codes() { return kCodes; }

std::string_view packed_code_name(PackedCode code) { return traits_of(code).name; }

int packed_code_bits(PackedCode code) { return traits_of(code).bits; }

bool stores_keys(PackedCode code) {
  return traits_of(code).family != PackedFamily::turboquant_value;
}

bool stores_values(PackedCode code) {
  return traits_of(code).family != PackedFamily::turboquant_key;
}

bool is_rotated(PackedCode code) {
  const PackedFamily family = traits_of(code).family;
  return family != PackedFamily::kv_quant && family != PackedFamily::turboquant_key;
}

Status check(PackedCode code, int head_dim) {
  if (takes(code, head_dim)) return {};
  std::string message = std::string(packed_code_name(code)) + " stores " +
                        describe(head_dims_of(code)) + ", and head_dim is " +
                        std::to_string(head_dim);
  if (head_dim >= 1 && head_dim <= kMaxHeadDim) {
    message += "; " + alternatives(code, head_dim) + " store it";
  }
  return invalid_argument(std::move(message));
}

PackedRowLayout packed_row_layout(PackedCode code, int head_dim) {
  KVIK_CHECK(takes(code, head_dim), "a packed row of a head_dim that its code does not take");
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

int64_t packed_row_bytes(PackedCode code, int head_dim) {
  return packed_row_layout(code, head_dim).row_bytes();
}

}  // namespace kvik
