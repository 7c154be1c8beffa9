// Calibrated keys in frames: what happens to a key after RoPE before a rotated format encodes it,
// and to a query before its dot products.
//
// A frame is a run of positions [i * frame, (i + 1) * frame); b is its first position, as RoPE
// counts. Turning key and query by RoPE -b changes no score and makes the statistics of keys the
// same at every position, so that one centre mu and one diagonal a serve all of them:
//   stored   y = rotate((turn(k, -b) - mu) * a)
//   score    q.k = rotate(turn(q, -b) / a) . y + turn(q, -b) . mu
// The score is exact for any mu and any a without zeros; only the error of the codes shrinks. The
// last term differs between frames and must not be dropped. A stored key depends on its place in
// its frame, not on the frame: a sequence moves by whole frames without a touched row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// Which dims turn together: 2i with 2i + 1, or i with i + number of pairs.
enum class KeyPairs : uint8_t { neighbours, halves };

// The transform of one layer's KV head. Borrows its arrays.
struct KeyFrame {
  int frame = 128;  // tokens: 128, 256 or 512
  // The position that RoPE turned a sequence's first key by; a multiple of `frame`.
  int64_t first_position = 0;
  KeyPairs pairs = KeyPairs::halves;
  // Radians per position of each pair, as RoPE turned the keys; dims beyond 2 * size() do not turn.
  std::span<const double> frequencies;
  std::span<const float> centre;    // mu, head_dim
  std::span<const float> diagonal;  // a, head_dim
  // cos and sin of (first_position + i * frame) * frequencies[p] at [i * frequencies.size() + p],
  // for as many frames i as there are; computed anew for frames beyond.
  std::span<const double> cos_table = {};
  std::span<const double> sin_table = {};
};

// What KeyFrame borrows, for all KV heads of one layer: [num_kv_heads * head_dim].
struct LayerKeyCalibration {
  KeyPairs pairs = KeyPairs::halves;
  std::vector<double> frequencies;
  std::vector<float> centre;
  std::vector<float> diagonal;
};

// The layers of one cache. KvSpec::key_calibration holds one.
struct KeyCalibration {
  int frame = 128;
  int64_t first_position = 0;  // as KeyFrame's, of all layers
  std::vector<LayerKeyCalibration> layers;

  // The transform of a KV head. Borrows from *this. Requires: indices in range.
  KeyFrame key_frame(int layer, int kv_head, int head_dim) const;
};

// invalid_argument naming the layer, the head and the field, else ok: as many layers and heads as
// given, each as check(KeyFrame).
KVIK_API Status check(const KeyCalibration& calibration, int num_layers, int num_kv_heads,
                      int head_dim);

// invalid_argument naming the field that is out of range, else ok: sizes as above, numbers finite,
// the diagonal positive.
KVIK_API Status check(const KeyFrame& frame, int head_dim);

// First position of the frame that holds `position`. Requires: position >= 0.
constexpr int64_t frame_begin(const KeyFrame& frame, int64_t position) {
  return position / frame.frame * frame.frame;
}

// The functions below require check(frame, head_dim).ok() and rows of head_dim floats; input and
// output may be the same row. Pure; angles are computed in double, products of keys too.

// The row that a rotated format encodes for a key at `position`: (turn(k, -b) - mu) * a.
KVIK_API void frame_key(const KeyFrame& frame, int64_t position, std::span<const float> key,
                        std::span<float> row) noexcept;

// The key that a decoded row stands for: turn(row / a + mu, b).
KVIK_API void unframe_key(const KeyFrame& frame, int64_t position, std::span<const float> row,
                          std::span<float> key) noexcept;

// Prepares a query for the stored rows of the frame that begins at `begin`, for dot products with
// decode_stored_row: rotate(turn(q, -b) / a). Returns the number to add to each of their scores.
// Products are in float: the score of a row whose codes lose nothing is that of q and k to float
// rounding. Requires: head_dim a multiple of 16, at most kMaxHeadDim.
KVIK_API float prepare_query(const KeyFrame& frame, int64_t begin, std::span<const float> query,
                             std::span<float> prepared) noexcept;

}  // namespace kvik
