#include "answer_text.h"

#include <string>

#include "terminal_text.h"

namespace kvik::cli {

bool AnswerText::write(std::string_view text) {
  if (!text.empty()) is_at_line_start_ = text.back() == '\n';
  return out_.write(is_terminal_ ? without_controls(text) : std::string(text));
}

void AnswerText::end_line_before_message() {
  if (!is_at_line_start_ && streams_are_one()) (void)write("\n");
}

void AnswerText::end_line_on_terminal() {
  if (!is_at_line_start_ && is_terminal_) (void)write("\n");
}

}  // namespace kvik::cli
