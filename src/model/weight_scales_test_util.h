// Where the f16 scales and offsets of a block lie, for tests and benches that fill weights with
// random bytes and want finite values of ordinary size.
#pragma once

#include <span>

#include "kvik/model/weights.h"

namespace kvik::testing {

// Offsets in bytes of what decides whether a block is finite. A plain value is its own scale.
inline std::span<const int> scale_offsets(WeightType type) {
  static constexpr int kStart[] = {0, 2};
  static constexpr int kQ2K[] = {80, 82};
  static constexpr int kQ3K[] = {108};
  static constexpr int kQ6K[] = {208};
  switch (type) {
    case WeightType::f32:
    case WeightType::f16:
    case WeightType::bf16:
    case WeightType::q8_0:
    case WeightType::q4_0:
    case WeightType::q5_0:
    case WeightType::iq4_nl:
      return std::span(kStart).first(1);
    case WeightType::q4_1:
    case WeightType::q5_1:
    case WeightType::q4_k:
    case WeightType::q5_k:
      return kStart;
    case WeightType::q2_k:
      return kQ2K;
    case WeightType::q3_k:
      return kQ3K;
    case WeightType::q6_k:
      return kQ6K;
  }
  return {};
}

}  // namespace kvik::testing
