#include "layer_cache/pending_halves.h"

#include <utility>

namespace kvik::internal {

Result<std::optional<KvArrays>> PendingHalves::offer(bool is_keys, const ConstTensorView& half,
                                                     const std::optional<KvArrays>& current) {
  // Checked against itself: a half has no partner yet.
  if (Result<KvArrayShape> shape = shape_of(half, half); !shape.ok()) return shape.status();
  const auto pair_with = [&](const KvArrays& other) {
    KvArrays pair = other;
    (is_keys ? pair.keys : pair.values) = half;
    return std::optional<KvArrays>(std::move(pair));
  };
  if (current) {
    const ConstTensorView& old = is_keys ? current->keys : current->values;
    if (half.shape == old.shape && half.dtype == old.dtype) return pair_with(*current);
  }
  const std::optional<KvArrays>& other = is_keys ? values_ : keys_;
  if (other) return pair_with(*other);
  ConstTensorView none = half;
  none.shape[3] = 0;
  Result<KvArrays> copy = copy_arrays(half, none);
  if (!copy.ok()) return copy.status();
  if (!is_keys) std::swap(copy->keys, copy->values);
  (is_keys ? keys_ : values_) = std::move(copy).value();
  return std::optional<KvArrays>();
}

}  // namespace kvik::internal
