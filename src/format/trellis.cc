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
#include <span>

#include "format/bit_stream.h"
#include "format/hadamard.h"
#include "format/lanes.h"
#include "format/level_tables.h"
#include "format/row_families.h"
#include "format/row_math.h"

namespace kvik::internal {
namespace {

constexpr int kNumStates = 4;   // u[i-1] + 2 * u[i-2]
constexpr int kNumSubsets = 4;  // n mod 4
constexpr int kMaxUps = 8;

struct Path {
  uint8_t up[kMaxRotatedHeadDim];
  uint8_t u[kMaxRotatedHeadDim];
};

// Levels by `up`: lane n % 4 of entry n / 4 is level n.
struct LevelRows {
  std::array<Floats4, kMaxUps> rows;
  int count;
};

LevelRows rows_of(std::span<const int8_t> levels) noexcept {
  LevelRows table{};
  table.count = static_cast<int>(levels.size()) / kNumSubsets;
  for (size_t n = 0; n < levels.size(); ++n) {
    table.rows[n / kNumSubsets][n % kNumSubsets] = level_value(levels[n]);
  }
  return table;
}

// The nearest level of each subset (a lane) for one element; a tie goes to the lower level.
struct Candidates {
  Floats4 cost;
  Ints4 up;
};

Candidates candidates_of(float w, const LevelRows& table) noexcept {
  // Levels ascend, so the costs of a subset fall, then rise: the nearest level is as many entries
  // away from the first as there are falls.
  const Floats4 wanted = all4(w);
  Floats4 difference = wanted - table.rows[0];
  Candidates best{difference * difference, Ints4{}};
  for (int up = 1; up < table.count; ++up) {
    difference = wanted - table.rows[static_cast<size_t>(up)];
    const Floats4 cost = difference * difference;
    best.up -= cost < best.cost;  // true is -1
    best.cost = min4(cost, best.cost);
  }
  return best;
}

// Viterbi: the path of least squared error. Ties go to the older bit 0, then to the lower state.
void search(const float* w, int head_dim, std::span<const int8_t> levels, Path& path) noexcept {
  constexpr float kNever = std::numeric_limits<float>::infinity();
  const LevelRows table = rows_of(levels);
  Floats4 cost = {0, kNever, kNever, kNever};  // a lane is a state
  std::array<Ints4, kMaxRotatedHeadDim> ups;
  std::array<Ints4, kMaxRotatedHeadDim> via_older_1;
  for (size_t i = 0; i < static_cast<size_t>(head_dim); ++i) {
    const Candidates best = candidates_of(w[i], table);
    // State u + 2 * one_back comes from one_back with an older bit 0, by subset 2 * u + one_back,
    // or from one_back + 2 with an older bit 1, by subset 2 * (1 - u) + one_back.
    const Floats4 via_0 = __builtin_shufflevector(cost, cost, 0, 0, 1, 1) +
                          __builtin_shufflevector(best.cost, best.cost, 0, 2, 1, 3);
    const Floats4 via_1 = __builtin_shufflevector(cost, cost, 2, 2, 3, 3) +
                          __builtin_shufflevector(best.cost, best.cost, 2, 0, 3, 1);
    cost = min4(via_1, via_0);
    via_older_1[i] = via_1 < via_0;
    ups[i] = best.up;
  }
  size_t state = 0;
  for (size_t other = 1; other < kNumStates; ++other) {
    if (cost[other] < cost[state]) state = other;
  }
  for (auto i = static_cast<size_t>(head_dim); i-- > 0;) {
    const size_t u = state & 1;
    const size_t one_back = state >> 1;
    const size_t two_back = via_older_1[i][state] != 0 ? 1 : 0;
    path.u[i] = static_cast<uint8_t>(u);
    path.up[i] = static_cast<uint8_t>(ups[i][2 * (u ^ two_back) + one_back]);
    state = one_back + 2 * two_back;
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
  float y[kMaxRotatedHeadDim];
  const std::optional<float> squares = rotate_row(row, head_dim, y);
  if (!squares) return false;
  const float n2 = *squares;

  const LevelTable table = trellis_levels(traits.bits);
  const bool is_zero = n2 < kTiny;
  const float sigma = std::sqrt(n2 / static_cast<float>(head_dim));
  float w[kMaxRotatedHeadDim];
  for (int i = 0; i < head_dim; ++i) w[i] = is_zero ? 0.0f : y[i] / sigma * table.gain;
  Path path;
  search(w, head_dim, table.levels, path);
  f16_bits scale = 0;
  if (!is_zero) {
    float values[kMaxRotatedHeadDim];
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
  Path path;
  const int up_bytes = head_dim * (traits.bits - 1) / 8;
  unpack_bits(packed, head_dim, traits.bits - 1, path.up);
  unpack_bits(packed + up_bytes, head_dim, 1, path.u);
  const float scale = f16_to_f32(load_as<f16_bits>(packed + up_bytes + head_dim / 8));
  values_of(path, head_dim, trellis_levels(traits.bits).levels, rotated);
  for (int i = 0; i < head_dim; ++i) rotated[i] *= scale;
}

}  // namespace kvik::internal
