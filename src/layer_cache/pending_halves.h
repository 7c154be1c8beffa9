// Keys and values that are assigned one after the other.
#pragma once

#include <optional>

#include "kvik/layer_cache/kv_arrays.h"

namespace kvik::internal {

class PendingHalves {
 public:
  // Takes one half. Returns the pair to load: with the other half of `current` where the new one
  // has exactly its partner's rows, else with the half that waited. Nothing: the half waits, as a
  // copy. `half` is borrowed by the result. Errors: as shape_of; out_of_memory.
  Result<std::optional<KvArrays>> offer(bool is_keys, const ConstTensorView& half,
                                        const std::optional<KvArrays>& current);
  void clear() {
    keys_.reset();
    values_.reset();
  }

 private:
  std::optional<KvArrays> keys_, values_;  // each with its own half set
};

}  // namespace kvik::internal
