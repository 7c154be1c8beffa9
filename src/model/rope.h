// Rotary position embedding (Su et al. 2021) of neighbouring pairs, and its frequency scalings.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvik/core/status.h"
#include "model/model_file.h"

namespace kvik::internal {

// Which dims of a head turn together, of those that turn: 2i and 2i + 1, or i and i + num_pairs.
enum class RopePairs : uint8_t { neighbours, halves };

// Pair i of a head at position p turns by the angle p * frequency[i].
struct Rope {
  std::vector<double> frequency;  // rope_dim / 2
  double magnitude = 1;           // cos and sin are multiplied by it
  int num_pairs() const { return static_cast<int>(frequency.size()); }
};

// YaRN (Peng et al. 2023, sections 3.2 and 3.4): pairs that turn more than beta_fast times within
// the original context keep their frequency, those below beta_slow turns are slowed by `factor`, a
// ramp joins them; magnitude = attention_factor * (1 + 0.1 ln factor).
struct Yarn {
  double factor = 1;
  double original_context = 0;  // tokens
  double attention_factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
};
void apply_yarn(const Yarn& yarn, double base, int rope_dim, Rope& rope);

// base^(-2i / rope_dim), without scaling.
Rope plain_rope(double base, int rope_dim);

// Reads `rope.*`: base frequency base^(-2i / rope_dim), slowed by linear scaling or YaRN, and
// divided by rope_freqs.weight[i] where the file has that tensor (Llama 3.1). Refuses other
// scalings by name. Errors go to the reader.
Rope read_rope(ModelFileReader& reader, int rope_dim);

// magnitude * cos and sin of the angles of each position beyond first_position,
// [positions.size()][num_pairs], computed in double.
void rope_angles(const Rope& rope, std::span<const int32_t> positions, int64_t first_position,
                 float* cos, float* sin);

// Turns the first 2 * num_pairs dims of each head of one token, in place.
void rotate_heads(float* row, int num_heads, int head_dim, RopePairs pairs, const float* cos,
                  const float* sin, int num_pairs) noexcept;

}  // namespace kvik::internal
