#include "format/framed_keys.h"

#include <algorithm>
#include <cmath>

namespace kvik::internal {
namespace {

// 64 KiB of angles for 32 pairs and half a million positions in frames of 128.
constexpr int64_t kMaxFrames = 4096;

bool turn_alike(const LayerKeyCalibration& a, const LayerKeyCalibration& b) {
  return a.frequencies == b.frequencies;
}

}  // namespace

FrameAngles::FrameAngles(const KeyCalibration& calibration, const LayerKeyCalibration& layer,
                         int64_t num_positions) {
  const int frame = calibration.frame;
  const int64_t num_frames = std::min(kMaxFrames, (num_positions + frame - 1) / frame);
  for (int64_t i = 0; i < num_frames; ++i) {
    for (const double frequency : layer.frequencies) {
      const double angle = static_cast<double>(calibration.first_position + i * frame) * frequency;
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
  }
}

FramedKeys::FramedKeys(std::shared_ptr<const KeyCalibration> calibration,
                       std::shared_ptr<const FrameAngles> angles, int layer, int num_kv_heads,
                       int head_dim)
    : calibration_(std::move(calibration)),
      angles_(std::move(angles)),
      head_dim_(static_cast<size_t>(head_dim)),
      transform_{calibration_->frame, prepare, this, store} {
  for (int head = 0; head < num_kv_heads; ++head) {
    KeyFrame frame = calibration_->key_frame(layer, head, head_dim);
    frame.cos_table = angles_->cos;
    frame.sin_table = angles_->sin;
    heads_.push_back(frame);
  }
}

float FramedKeys::prepare(const void* state, int kv_head, int64_t frame_begin, const float* query,
                          float* prepared) {
  const auto& self = *static_cast<const FramedKeys*>(state);
  return prepare_query(self.heads_[static_cast<size_t>(kv_head)], frame_begin,
                       {query, self.head_dim_}, {prepared, self.head_dim_});
}

void FramedKeys::store(const void* state, int kv_head, int64_t position, const float* key,
                       float* row) {
  const auto& self = *static_cast<const FramedKeys*>(state);
  frame_key(self.heads_[static_cast<size_t>(kv_head)], position, {key, self.head_dim_},
            {row, self.head_dim_});
}

std::vector<std::unique_ptr<const FramedKeys>> framed_keys(const KvSpec& spec,
                                                           int64_t num_positions) {
  std::vector<std::unique_ptr<const FramedKeys>> layers(static_cast<size_t>(spec.num_layers()));
  if (spec.key_calibration == nullptr) return layers;
  const LayerKeyCalibration* last = nullptr;
  std::shared_ptr<const FrameAngles> angles;
  for (int i = 0; i < spec.num_layers(); ++i) {
    if (!is_rotated(spec.layers[static_cast<size_t>(i)].k)) continue;
    const LayerKeyCalibration& layer = spec.key_calibration->layers[static_cast<size_t>(i)];
    if (last == nullptr || !turn_alike(*last, layer)) {
      angles = std::make_shared<FrameAngles>(*spec.key_calibration, layer, num_positions);
    }
    last = &layer;
    layers[static_cast<size_t>(i)] = std::make_unique<FramedKeys>(
        spec.key_calibration, angles, i, spec.num_kv_heads, spec.head_dim_k);
  }
  return layers;
}

}  // namespace kvik::internal
