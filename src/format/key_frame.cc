#include "kvik/format/key_frame.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "format/hadamard.h"
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

// Turns `row` by `positions`. Angles are in double: at position 100,000 a float angle is off by
// 4e-3 radians.
void turn(const KeyFrame& frame, double positions, double* row) noexcept {
  const size_t num_pairs = frame.frequencies.size();
  for (size_t p = 0; p < num_pairs; ++p) {
    const double angle = positions * frame.frequencies[p];
    const double cos = std::cos(angle);
    const double sin = std::sin(angle);
    const size_t i = frame.pairs == KeyPairs::neighbours ? 2 * p : p;
    const size_t j = frame.pairs == KeyPairs::neighbours ? 2 * p + 1 : p + num_pairs;
    const double x = row[i];
    const double y = row[j];
    row[i] = x * cos - y * sin;
    row[j] = x * sin + y * cos;
  }
}

}  // namespace

Status check(const KeyFrame& frame, int head_dim) {
  if (frame.frame != 128 && frame.frame != 256 && frame.frame != 512) {
    return invalid_argument("frame is " + std::to_string(frame.frame) +
                            " tokens; frames of 128, 256 and 512 exist");
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

void frame_key(const KeyFrame& frame, int64_t position, std::span<const float> key,
               std::span<float> row) noexcept {
  double turned[kMaxHeadDim];
  std::ranges::copy(key, turned);
  turn(frame, -static_cast<double>(frame_begin(frame, position)), turned);
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
  turn(frame, static_cast<double>(frame_begin(frame, position)), turned);
  for (size_t d = 0; d < key.size(); ++d) key[d] = static_cast<float>(turned[d]);
}

float prepare_query(const KeyFrame& frame, int64_t begin, std::span<const float> query,
                    std::span<float> prepared) noexcept {
  double turned[kMaxHeadDim];
  std::ranges::copy(query, turned);
  turn(frame, -static_cast<double>(begin), turned);
  double added = 0;
  for (size_t d = 0; d < prepared.size(); ++d) {
    added += turned[d] * frame.centre[d];
    prepared[d] = static_cast<float>(turned[d] / frame.diagonal[d]);
  }
  internal::rotate(prepared.data(), static_cast<int>(prepared.size()));
  return static_cast<float>(added);
}

}  // namespace kvik
