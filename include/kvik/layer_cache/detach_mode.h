// How a host framework should cut new rows from its lazy graph before a cache takes them.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// The names are part of the caches' meta state and statistics. Kvik's caches always copy the new
// rows, and nothing else, into memory of their own, so for arrays in CPU memory the four modes do
// the same; an adapter for a lazy framework reads the mode to decide what it evaluates first:
//   eval_only                       evaluates the array as it is
//   contiguous_eval                 makes it contiguous, then evaluates
//   selected_slice_contiguous_eval  the same, for a slice of a larger array
//   metal_copy_leaf                 copies by a GPU kernel; without Metal as contiguous_eval
enum class DetachMode : uint8_t {
  eval_only,
  contiguous_eval,
  selected_slice_contiguous_eval,
  metal_copy_leaf
};

// "eval_only", "contiguous_eval", ...
KVIK_API std::string_view detach_mode_name(DetachMode mode);

// Trims white space, lowers case, reads '-' as '_'. Errors: invalid_argument that lists the modes.
KVIK_API Result<DetachMode> parse_detach_mode(std::string_view name);

}  // namespace kvik
