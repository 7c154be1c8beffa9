#include "kvik/layer_cache/detach_mode.h"

#include <array>

#include "layer_cache/names.h"

namespace kvik {
namespace {

constexpr std::array kNames = {
    internal::Named<DetachMode>{"eval_only", DetachMode::eval_only},
    internal::Named<DetachMode>{"contiguous_eval", DetachMode::contiguous_eval},
    internal::Named<DetachMode>{"selected_slice_contiguous_eval",
                                DetachMode::selected_slice_contiguous_eval},
    internal::Named<DetachMode>{"metal_copy_leaf", DetachMode::metal_copy_leaf},
};

}  // namespace

std::string_view detach_mode_name(DetachMode mode) {
  return kNames[static_cast<size_t>(mode)].name;
}

Result<DetachMode> parse_detach_mode(std::string_view name) {
  return internal::parse_name<DetachMode>("detach mode", name, '_', kNames);
}

}  // namespace kvik
