// tcq4, tcq3, tcq2: rotated (hadamard.h), codes of a four-state trellis, one unbiased scale per
// row.
//
//   row   = stream of head_dim `up` codes of bits-1 bits | head_dim bits u | scale f16
//   n     = 4 * up[i] + 2 * (u[i] xor u[i-2]) + u[i-1]      (u = 0 before the row)
//   value = (level[n] + 1/2) / 32, n below 2^(bits+1)
//   scale = f16(n2 / sum16(y * value)), 0 for a row with n2 = sum16(y^2) < 2^-100
//   y'    = value * scale
// u chooses one of four subsets of the levels, in an order that earlier u restrict: a table of
// twice the size for the same bits. Decoding needs no sequence: two shifted copies of the bits u.
#include <array>
#include <cmath>
#include <limits>

#include "format/bit_stream.h"
#include "format/hadamard.h"
#include "format/level_tables.h"
#include "format/row_families.h"
#include "format/row_math.h"

namespace kvik::internal {
namespace {

constexpr int kNumStates = 4;   // u[i-1] + 2 * u[i-2]
constexpr int kNumSubsets = 4;  // n mod 4

struct Path {
  uint8_t up[kMaxRotatedHeadDim];
  uint8_t u[kMaxRotatedHeadDim];
};

// The nearest level of each subset for one element; a tie goes to the lower level.
struct Candidates {
  std::array<float, kNumSubsets> cost;
  std::array<uint8_t, kNumSubsets> up;
};

Candidates candidates_of(float w, std::span<const int8_t> levels) noexcept {
  Candidates best;
  best.cost.fill(std::numeric_limits<float>::infinity());
  best.up.fill(0);
  for (size_t n = 0; n < levels.size(); ++n) {
    const float difference = w - level_value(levels[n]);
    const float cost = difference * difference;
    if (cost < best.cost[n % kNumSubsets]) {
      best.cost[n % kNumSubsets] = cost;
      best.up[n % kNumSubsets] = static_cast<uint8_t>(n / kNumSubsets);
    }
  }
  return best;
}

// Viterbi: the path of least squared error. Ties go to the older bit 0, then to the lower state.
void search(const float* w, int head_dim, std::span<const int8_t> levels, Path& path) noexcept {
  constexpr float kNever = std::numeric_limits<float>::infinity();
  std::array<float, kNumStates> cost = {0, kNever, kNever, kNever};
  std::array<std::array<uint8_t, kNumSubsets>, kMaxRotatedHeadDim> ups;
  std::array<std::array<uint8_t, kNumStates>, kMaxRotatedHeadDim> from;
  for (size_t i = 0; i < static_cast<size_t>(head_dim); ++i) {
    const Candidates best = candidates_of(w[i], levels);
    std::array<float, kNumStates> next;
    for (size_t state = 0; state < kNumStates; ++state) {
      const size_t u = state & 1;
      const size_t one_back = state >> 1;
      // The two states that can come before: their u[i-2] is 0 or 1.
      const float via_0 = cost[one_back] + best.cost[2 * u + one_back];
      const float via_1 = cost[one_back + 2] + best.cost[2 * (u ^ 1) + one_back];
      next[state] = std::min(via_0, via_1);
      from[i][state] = static_cast<uint8_t>(via_1 < via_0 ? one_back + 2 : one_back);
    }
    cost = next;
    ups[i] = best.up;
  }
  auto state = static_cast<size_t>(std::min_element(cost.begin(), cost.end()) - cost.begin());
  for (auto i = static_cast<size_t>(head_dim); i-- > 0;) {
    const size_t before = from[i][state];
    path.u[i] = static_cast<uint8_t>(state & 1);
    path.up[i] = ups[i][2 * ((state & 1) ^ (before >> 1)) + (before & 1)];
    state = before;
  }
}

// The values of a path, before the scale.
void values_of(const Path& path, int head_dim, std::span<const int8_t> levels,
               float* values) noexcept {
  int one_back = 0;
  int two_back = 0;
  for (int i = 0; i < head_dim; ++i) {
    const int n = 4 * path.up[i] + 2 * (path.u[i] ^ two_back) + one_back;
    values[i] = level_value(levels[static_cast<size_t>(n)]);
    two_back = one_back;
    one_back = path.u[i];
  }
}

}  // namespace

bool encode_trellis(const PackedTraits& traits, const float* row, int head_dim,
                    std::byte* packed) noexcept {
  float y[kMaxRotatedHeadDim] = {};
  const std::optional<float> squares = rotate_row(row, head_dim, y);
  if (!squares) return false;
  const float n2 = *squares;

  const LevelTable table = trellis_levels(traits.bits);
  const bool is_zero = n2 < kTiny;
  const float sigma = std::sqrt(n2 / static_cast<float>(head_dim));
  float w[kMaxRotatedHeadDim];
  for (int i = 0; i < head_dim; ++i) w[i] = is_zero ? 0.0f : y[i] / sigma * table.gain;
  Path path{};
  search(w, head_dim, table.levels, path);
  f16_bits scale = 0;
  if (!is_zero) {
    float values[kMaxRotatedHeadDim] = {};
    values_of(path, head_dim, table.levels, values);
    scale = saturated_f16(n2 / sum16(head_dim, [&](int i) { return y[i] * values[i]; }));
  }
  const int up_bytes = head_dim * (traits.bits - 1) / 8;
  pack_bits(path.up, head_dim, traits.bits - 1, packed);
  pack_bits(path.u, head_dim, 1, packed + up_bytes);
  store_as(packed + up_bytes + head_dim / 8, scale);
  return true;
}

void decode_trellis(const PackedTraits& traits, const std::byte* packed, int head_dim,
                    float* rotated) noexcept {
  Path path{};
  const int up_bytes = head_dim * (traits.bits - 1) / 8;
  unpack_bits(packed, head_dim, traits.bits - 1, path.up);
  unpack_bits(packed + up_bytes, head_dim, 1, path.u);
  const float scale = f16_to_f32(load_as<f16_bits>(packed + up_bytes + head_dim / 8));
  values_of(path, head_dim, trellis_levels(traits.bits).levels, rotated);
  for (int i = 0; i < head_dim; ++i) rotated[i] *= scale;
}

}  // namespace kvik::internal
