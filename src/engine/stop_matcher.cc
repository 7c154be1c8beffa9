#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace kvik::internal {

std::string StopMatcher::push(std::string_view piece) {
  if (is_stopped_) return {};
  held_ += piece;
  size_t found = std::string::npos;
  for (const std::string& stop : stops_) found = std::min(found, held_.find(stop));
  if (found != std::string::npos) {
    is_stopped_ = true;
    held_.resize(found);
    return std::exchange(held_, {});
  }
  // The longest end of the text that starts some stop string waits.
  size_t waiting = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > waiting; --length) {
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) waiting = length;
    }
  }
  std::string certain = held_.substr(0, held_.size() - waiting);
  held_.erase(0, held_.size() - waiting);
  return certain;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

}  // namespace kvik::internal
