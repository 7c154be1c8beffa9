#include "kvik/format/key_frame.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "format/hadamard.h"
#include "format/row_math.h"
#include "format/turn_pairs.h"
#include "kvik/core/check.h"
#include "kvik/format/kv_format.h"

namespace kvik {
namespace {

Status check_array(const char* name, std::span<const float> values, int head_dim) {
  if (values.size() != static_cast<size_t>(head_dim)) {
    return invalid_argument(std::string(name) + " has " + std::to_string(values.size()) +
                            " numbers; a head needs " + std::to_string(head_dim));
  }
  if (!std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) {
    return invalid_argument(std::string(name) + " holds a number that is not finite");
  }
  return {};
}

// Turns `row` back by the begin of a frame (direction -1), or forth again (+1). Angles are in
// double: at position 100,000 a float angle is off by 4e-3 radians.
template <class Float>
void turn(const KeyFrame& frame, int64_t begin, Float direction, Float* row) noexcept {
  const size_t num_pairs = frame.frequencies.size();
  const size_t at = static_cast<size_t>(begin / frame.frame) * num_pairs;
  const bool is_known = at + num_pairs <= frame.cos_table.size();
  double own_cos[kMaxHeadDim / 2];
  double own_sin[kMaxHeadDim / 2];
  for (size_t p = 0; p < num_pairs && !is_known; ++p) {
    const double angle = static_cast<double>(frame.first_position + begin) * frame.frequencies[p];
    own_cos[p] = std::cos(angle);
    own_sin[p] = std::sin(angle);
  }
  const double* const cos = is_known ? frame.cos_table.data() + at : own_cos;
  const double* const sin = is_known ? frame.sin_table.data() + at : own_sin;
  internal::turn_pairs(frame.pairs, cos, sin, num_pairs, direction, row);
}

}  // namespace

Status check(const KeyFrame& frame, int head_dim) {
  if (frame.frame != 128 && frame.frame != 256 && frame.frame != 512) {
    return invalid_argument("frame is " + std::to_string(frame.frame) +
                            " tokens; frames of 128, 256 and 512 exist");
  }
  if (frame.first_position < 0 || frame.first_position % frame.frame != 0) {
    return invalid_argument("first_position is " + std::to_string(frame.first_position) +
                            "; it must be a multiple of the frame, " + std::to_string(frame.frame));
  }
  if (head_dim < 1 || head_dim > kMaxHeadDim) {
    return invalid_argument("head_dim is " + std::to_string(head_dim) + "; frames take 1 to " +
                            std::to_string(kMaxHeadDim));
  }
  if (2 * frame.frequencies.size() > static_cast<size_t>(head_dim)) {
    return invalid_argument(std::to_string(frame.frequencies.size()) +
                            " frequencies turn more dims than head_dim " +
                            std::to_string(head_dim));
  }
  if (!std::ranges::all_of(frame.frequencies, [](double x) { return std::isfinite(x); })) {
    return invalid_argument("frequencies hold a number that is not finite");
  }
  if (Status status = check_array("centre", frame.centre, head_dim); !status.ok()) return status;
  if (Status status = check_array("diagonal", frame.diagonal, head_dim); !status.ok()) {
    return status;
  }
  if (!std::ranges::all_of(frame.diagonal, [](float x) { return x > 0; })) {
    return invalid_argument("diagonal holds a number that is not positive");
  }
  return {};
}

KeyFrame KeyCalibration::key_frame(int layer, int kv_head, int head_dim) const {
  const LayerKeyCalibration& of = layers[static_cast<size_t>(layer)];
  const auto at = static_cast<size_t>(kv_head) * static_cast<size_t>(head_dim);
  const auto count = static_cast<size_t>(head_dim);
  return {.frame = frame,
          .first_position = first_position,
          .pairs = of.pairs,
          .frequencies = of.frequencies,
          .centre = std::span<const float>(of.centre).subspan(at, count),
          .diagonal = std::span<const float>(of.diagonal).subspan(at, count)};
}

Status check(const KeyCalibration& calibration, int num_layers, int num_kv_heads, int head_dim) {
  if (calibration.layers.size() != static_cast<size_t>(num_layers)) {
    return invalid_argument("the key calibration has " + std::to_string(calibration.layers.size()) +
                            " layers; the cache has " + std::to_string(num_layers));
  }
  const size_t numbers = static_cast<size_t>(num_kv_heads) * static_cast<size_t>(head_dim);
  for (int layer = 0; layer < num_layers; ++layer) {
    const LayerKeyCalibration& of = calibration.layers[static_cast<size_t>(layer)];
    const std::string where = "key calibration of layer " + std::to_string(layer) + ": ";
    for (const auto& [name, size] :
         {std::pair("centre", of.centre.size()), std::pair("diagonal", of.diagonal.size())}) {
      if (size == numbers) continue;
      return invalid_argument(where + name + " has " + std::to_string(size) + " numbers; " +
                              std::to_string(num_kv_heads) + " KV heads of " +
                              std::to_string(head_dim) + " dims need " + std::to_string(numbers));
    }
    for (int head = 0; head < num_kv_heads; ++head) {
      const Status status = check(calibration.key_frame(layer, head, head_dim), head_dim);
      if (status.ok()) continue;
      return invalid_argument(where + "KV head " + std::to_string(head) + ": " + status.message());
    }
  }
  return {};
}

void frame_key(const KeyFrame& frame, int64_t position, std::span<const float> key,
               std::span<float> row) noexcept {
  double turned[kMaxHeadDim];
  std::ranges::copy(key, turned);
  turn(frame, frame_begin(frame, position), -1.0, turned);
  for (size_t d = 0; d < row.size(); ++d) {
    row[d] = static_cast<float>((turned[d] - frame.centre[d]) * frame.diagonal[d]);
  }
}

void unframe_key(const KeyFrame& frame, int64_t position, std::span<const float> row,
                 std::span<float> key) noexcept {
  double turned[kMaxHeadDim];
  for (size_t d = 0; d < row.size(); ++d) {
    turned[d] = double{row[d]} / frame.diagonal[d] + frame.centre[d];
  }
  turn(frame, frame_begin(frame, position), 1.0, turned);
  for (size_t d = 0; d < key.size(); ++d) key[d] = static_cast<float>(turned[d]);
}

float prepare_query(const KeyFrame& frame, int64_t begin, std::span<const float> query,
                    std::span<float> prepared) noexcept {
  // In float, as the dot products that follow: this runs for each query in each frame that it sees.
  const auto head_dim = static_cast<int>(query.size());
  float turned[kMaxHeadDim];
  for (int d = 0; d < head_dim; ++d) turned[d] = query[static_cast<size_t>(d)];
  turn(frame, begin, -1.0f, turned);
  const float* const centre = frame.centre.data();
  const float* const diagonal = frame.diagonal.data();
  const float added = internal::sum16(head_dim, [&](int d) { return turned[d] * centre[d]; });
  for (int d = 0; d < head_dim; ++d) turned[d] /= diagonal[d];
  internal::rotate(turned, head_dim);
  std::ranges::copy_n(turned, head_dim, prepared.data());
  return added;
}

}  // namespace kvik
