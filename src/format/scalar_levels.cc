// tq8, tq4, tq3, tq2: rotated (hadamard.h), int8 levels, one unbiased scale per row.
//
//   row   = stream of head_dim codes | scale f16
//   y     = rotated x; n2 = sum16(y^2); a row with n2 < 2^-100 is zero: scale 0
//   tq8:  value = code = rint(y * (127 / largest |y|)), int8; zero row: code 0
//   else: u = y / sqrt(n2 / head_dim) * gain; code = number of midpoints between levels below u;
//         value = (level[code] + 1/2) / 32; zero row: code 2^(bits-1) - 1
//   scale = f16(n2 / sum16(y * value)), so that <y, y'> = <y, y> and inner products are unbiased
//   y'    = value * scale
#include <cmath>

#include "format/bit_stream.h"
#include "format/hadamard.h"
#include "format/lanes.h"
#include "format/level_tables.h"
#include "format/row_families.h"
#include "format/row_math.h"

namespace kvik::internal {
namespace {

constexpr int kMaxLevels = 16;

// Writes code and value of each element. Requires: n2 is the row's sum of squares, at least kTiny.
void code_integers(const float* y, int head_dim, uint8_t* codes, float* values) noexcept {
  const float factor = 127.0f / peak_of(y, head_dim);
  for (int i = 0; i < head_dim; ++i) {
    values[i] = round_even(y[i] * factor);
    codes[i] = static_cast<uint8_t>(static_cast<int>(values[i]));
  }
}

void code_levels(const LevelTable& table, const float* y, float n2, int head_dim, uint8_t* codes,
                 float* values) noexcept {
  const float sigma = std::sqrt(n2 / static_cast<float>(head_dim));
  // Midpoints of neighbouring levels are exact: (l0 + l1 + 1) / 64.
  float midpoints[kMaxLevels] = {};
  for (size_t n = 0; n + 1 < table.levels.size(); ++n) {
    midpoints[n] = static_cast<float>(table.levels[n] + table.levels[n + 1] + 1) * (1.0f / 64.0f);
  }
  const auto num_midpoints = static_cast<int>(table.levels.size()) - 1;
  for (int i = 0; i < head_dim; i += 4) {
    const Floats4 u = load4(y + i) / all4(sigma) * all4(table.gain);
    Ints4 code{};
    for (int n = 0; n < num_midpoints; ++n) code -= all4(midpoints[n]) < u;  // true is -1
    for (int lane = 0; lane < 4; ++lane) {
      codes[i + lane] = static_cast<uint8_t>(code[lane]);
      values[i + lane] = level_value(table.levels[static_cast<size_t>(code[lane])]);
    }
  }
}

}  // namespace

bool encode_scalar(const PackedTraits& traits, const float* row, int head_dim,
                   std::byte* packed) noexcept {
  float y[kMaxRotatedHeadDim];
  const std::optional<float> squares = rotate_row(row, head_dim, y);
  if (!squares) return false;
  const float n2 = *squares;

  uint8_t codes[kMaxRotatedHeadDim];
  f16_bits scale = 0;
  if (n2 < kTiny) {
    const int zero = traits.bits == 8 ? 0 : (1 << (traits.bits - 1)) - 1;
    std::fill(codes, codes + head_dim, static_cast<uint8_t>(zero));
  } else {
    float values[kMaxRotatedHeadDim];
    if (traits.bits == 8) {
      code_integers(y, head_dim, codes, values);
    } else {
      code_levels(scalar_levels(traits.bits), y, n2, head_dim, codes, values);
    }
    scale = saturated_f16(n2 / sum16(head_dim, [&](int i) { return y[i] * values[i]; }));
  }
  pack_bits(codes, head_dim, traits.bits, packed);
  store_as(packed + head_dim * traits.bits / 8, scale);
  return true;
}

void decode_scalar(const PackedTraits& traits, const std::byte* packed, int head_dim,
                   float* rotated) noexcept {
  uint8_t codes[kMaxRotatedHeadDim];
  unpack_bits(packed, head_dim, traits.bits, codes);
  const float scale = f16_to_f32(load_as<f16_bits>(packed + head_dim * traits.bits / 8));
  if (traits.bits == 8) {
    for (int i = 0; i < head_dim; ++i) {
      rotated[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * scale;
    }
    return;
  }
  const std::span<const int8_t> levels = scalar_levels(traits.bits).levels;
  for (int i = 0; i < head_dim; ++i) rotated[i] = level_value(levels[codes[i]]) * scale;
}

}  // namespace kvik::internal
