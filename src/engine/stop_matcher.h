// Finds stop strings in text that arrives in pieces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvik::internal {

// Holds back text that may be the start of a stop string. Never cuts a character: all stop strings
// and pieces are whole UTF-8. Tokens that are not shown (control tokens) take part: a stop string
// that spells one out matches it as a whole, and shown text on both sides of one is joined.
class StopMatcher {
 public:
  // Requires: no stop string is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Adds a piece and returns the shown text that is certain now. After the first stop string, in
  // order of its place, is_stopped() and all further text is dropped.
  std::string push(std::string_view piece);
  // Adds a token that is not shown, by its spelled-out text.
  std::string push_hidden(std::string_view token);
  // What was held back; empty once stopped.
  std::string flush();
  bool is_stopped() const { return is_stopped_; }

 private:
  enum class Match : unsigned char { none, may_come, whole };
  struct Hidden {
    size_t begin, size;  // of held_
  };

  std::string settle();
  Match match(std::string_view rest_of_stop, size_t at, bool begun) const;
  const Hidden* hidden_at(size_t at) const;
  std::string take_shown(size_t end);

  std::vector<std::string> stops_;
  std::string held_;
  std::vector<Hidden> hidden_;  // in order
  bool is_stopped_ = false;
};

}  // namespace kvik::internal
