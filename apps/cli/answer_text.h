// Text of a model or a template on its way to standard output.
#pragma once

#include <string_view>

#include "cli.h"

namespace kvik::cli {

// As it is into a file or a pipe; on a terminal without control characters that would steer it.
class AnswerText {
 public:
  explicit AnswerText(Output& out) : out_(out), is_terminal_(stdout_is_terminal()) {}

  // False once a write has failed.
  bool write(std::string_view text);
  // A line break, unless the text ends with one, where a message on stderr would follow on its
  // line.
  void end_line_before_message();
  void end_line_on_terminal();

 private:
  Output& out_;
  bool is_terminal_;
  bool is_at_line_start_ = true;
};

}  // namespace kvik::cli
