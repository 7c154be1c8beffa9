#include "engine/stop_matcher.h"

#include <algorithm>

namespace kvik::internal {

std::string StopMatcher::push(std::string_view piece) {
  if (is_stopped_) return {};
  held_ += piece;
  return settle();
}

std::string StopMatcher::push_hidden(std::string_view token) {
  if (is_stopped_ || token.empty()) return {};
  hidden_.push_back({held_.size(), token.size()});
  held_ += token;
  return settle();
}

// Text before the first place where a stop string begins, or may begin.
std::string StopMatcher::settle() {
  size_t at = 0;
  for (Match found = Match::none; at < held_.size();) {
    for (const std::string& stop : stops_) found = std::max(found, match(stop, at, false));
    is_stopped_ = found == Match::whole;
    if (found != Match::none) break;
    const Hidden* const hidden = hidden_at(at);
    at += hidden != nullptr ? hidden->size : 1;
  }
  return take_shown(at);
}

// Whether the text at `at` goes on as the rest of a stop string does. `begun`: some of it is
// matched.
StopMatcher::Match StopMatcher::match(std::string_view rest_of_stop, size_t at, bool begun) const {
  for (; !rest_of_stop.empty(); rest_of_stop.remove_prefix(1), ++at, begun = true) {
    if (at == held_.size()) return begun ? Match::may_come : Match::none;
    if (const Hidden* const hidden = hidden_at(at); hidden != nullptr) {
      const size_t behind = at + hidden->size;
      Match best = Match::none;
      if (rest_of_stop.starts_with(std::string_view(held_).substr(at, hidden->size))) {
        best = match(rest_of_stop.substr(hidden->size), behind, true);
      }
      return begun ? std::max(best, match(rest_of_stop, behind, true)) : best;
    }
    if (held_[at] != rest_of_stop.front()) return Match::none;
  }
  return Match::whole;
}

const StopMatcher::Hidden* StopMatcher::hidden_at(size_t at) const {
  const auto found = std::find_if(hidden_.begin(), hidden_.end(),
                                  [at](const Hidden& hidden) { return hidden.begin == at; });
  return found == hidden_.end() ? nullptr : &*found;
}

// Removes the first `end` bytes (all, once stopped) and returns what of the first is shown.
std::string StopMatcher::take_shown(size_t end) {
  std::string shown;
  size_t done = 0;
  for (const Hidden& hidden : hidden_) {
    if (hidden.begin >= end) break;
    shown.append(held_, done, hidden.begin - done);
    done = hidden.begin + hidden.size;
  }
  shown.append(held_, done, end - done);
  held_.erase(0, is_stopped_ ? held_.size() : end);
  std::erase_if(hidden_, [&](const Hidden& hidden) { return is_stopped_ || hidden.begin < end; });
  for (Hidden& hidden : hidden_) hidden.begin -= end;
  return shown;
}

std::string StopMatcher::flush() { return take_shown(held_.size()); }

}  // namespace kvik::internal
