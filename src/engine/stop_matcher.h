// Finds stop strings in text that arrives in pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvik::internal {

// Holds back text that may be the start of a stop string. Never cuts a character: all stop strings
// and pieces are whole UTF-8.
class StopMatcher {
 public:
  // Requires: no stop string is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Adds a piece and returns the text that is certain now. After the first stop string, in order of
  // its place (the longest among those at one place), is_stopped() and all further text is dropped.
  std::string push(std::string_view piece);
  // What was held back; empty once stopped.
  std::string flush();
  bool is_stopped() const { return is_stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool is_stopped_ = false;
};

}  // namespace kvik::internal
