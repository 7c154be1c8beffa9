// The KeyTransform of one layer whose keys lie in calibrated frames.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvik/format/key_frame.h"
#include "kvik/format/kv_view.h"

namespace kvik::internal {

// cos and sin of the frames of some positions, for layers that turn alike.
struct FrameAngles {
  std::vector<double> cos, sin;

  // Of the frames that cover [0, num_positions), up to a limit.
  FrameAngles(const KeyCalibration& calibration, const LayerKeyCalibration& layer,
              int64_t num_positions);
};

// Not moved once made: views hold the address of transform().
class FramedKeys {
 public:
  // Requires: check(*calibration, ...) ok, layer in range.
  FramedKeys(std::shared_ptr<const KeyCalibration> calibration,
             std::shared_ptr<const FrameAngles> angles, int layer, int num_kv_heads, int head_dim);
  FramedKeys(const FramedKeys&) = delete;
  FramedKeys& operator=(const FramedKeys&) = delete;

  const KeyTransform& transform() const { return transform_; }

 private:
  static float prepare(const void* state, int kv_head, int64_t frame_begin, const float* query,
                       float* prepared);
  static void store(const void* state, int kv_head, int64_t position, const float* key, float* row);

  std::shared_ptr<const KeyCalibration> calibration_;
  std::shared_ptr<const FrameAngles> angles_;
  std::vector<KeyFrame> heads_;
  size_t head_dim_;
  KeyTransform transform_;
};

// One for each layer of the spec whose keys lie in frames, null for the others. num_positions: how
// long sequences may become without computing angles anew.
std::vector<std::unique_ptr<const FramedKeys>> framed_keys(const KvSpec& spec,
                                                           int64_t num_positions);

}  // namespace kvik::internal
