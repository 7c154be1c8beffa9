// The parts of a layer that work on each row by itself. Plain f32 arithmetic in a fixed order, the
// same bits on every instruction set; a row depends on no other row. Batches worth it are shared
// out over the team by rows.
#pragma once

#include <cstdint>
#include <span>

#include "kvik/core/thread_team.h"
#include "kvik/model/weights.h"
#include "model/rope.h"

namespace kvik::internal {

// out[n][i] = x[n][i] / sqrt(mean_i(x[n][i]^2) + epsilon) * weight[i], rows of weight.size()
// floats. The squares are summed in double. `out` may be `x`.
void rms_norm(ThreadTeam& team, const float* x, int64_t num_rows, std::span<const float> weight,
              float epsilon, float* out);

// x[n][i] += row[i] for all rows; nothing for an empty row.
void add_row(ThreadTeam& team, float* x, int64_t num_rows, std::span<const float> row);

// x[i] += delta[i].
void add_to(ThreadTeam& team, float* x, const float* delta, int64_t num_rows, int64_t width);

// gate[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)).
void silu_times(ThreadTeam& team, float* gate, const float* up, int64_t num_rows, int64_t width);

// gate[i] = gelu(gate[i]) * up[i] by the tanh formula, x / (1 + exp(-2 z)) with z = sqrt(2 / pi) *
// (x + 0.044715 x^3).
void gelu_times(ThreadTeam& team, float* gate, const float* up, int64_t num_rows, int64_t width);

// x[i] = cap * tanh(x[i] / cap), computed in double.
void soft_cap(ThreadTeam& team, float* x, int64_t num_rows, int64_t width, float cap);

// cos and sin as rope_angles() leaves them, one row of num_pairs for each token.
struct Turns {
  const float* cos;
  const float* sin;
  int num_pairs;
};
// Turns all heads of all rows.
void rotate_rows(ThreadTeam& team, float* x, int64_t num_rows, int num_heads, int head_dim,
                 RopePairs pairs, const Turns& turns);

// Row ids[n] of the weight, decoded and times scale, to out[n].
void look_up(ThreadTeam& team, const Weight& weight, std::span<const int32_t> ids, float scale,
             float* out);

}  // namespace kvik::internal
