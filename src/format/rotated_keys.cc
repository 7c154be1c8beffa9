#include <algorithm>
#include <array>

#include "format/hadamard.h"
#include "kvik/core/check.h"
#include "kvik/format/kv_view.h"

namespace kvik {
namespace {

constexpr int kStep = 16;
constexpr size_t kCount = kMaxHeadDim / kStep;

float rotate_query(const void* state, int, int64_t, const float* query, float* prepared) {
  const int head_dim = *static_cast<const int*>(state);
  std::copy_n(query, head_dim, prepared);
  internal::rotate(prepared, head_dim);
  return 0.0f;
}

constexpr std::array<int, kCount> make_head_dims() {
  std::array<int, kCount> dims{};
  for (size_t i = 0; i < kCount; ++i) dims[i] = static_cast<int>(i + 1) * kStep;
  return dims;
}
constexpr std::array<int, kCount> kHeadDims = make_head_dims();

constexpr std::array<KeyTransform, kCount> make_transforms() {
  std::array<KeyTransform, kCount> transforms{};
  for (size_t i = 0; i < kCount; ++i) transforms[i] = {0, rotate_query, &kHeadDims[i]};
  return transforms;
}
constexpr std::array<KeyTransform, kCount> kTransforms = make_transforms();

}  // namespace

const KeyTransform* rotated_keys(int head_dim) {
  KVIK_CHECK(head_dim >= kStep && head_dim <= kMaxHeadDim && head_dim % kStep == 0,
             "rotated keys have multiples of 16 dims up to kMaxHeadDim");
  return &kTransforms[static_cast<size_t>(head_dim / kStep) - 1];
}

}  // namespace kvik
