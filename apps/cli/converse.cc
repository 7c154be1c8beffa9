// The conversation of `kvik run`: each turn reuses what the cache holds of the turns before it.
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "answer_text.h"
#include "cli.h"
#include "kvik/model/stream_decoder.h"
#include "run.h"

namespace kvik::cli {
namespace {

// Lines of standard input; a signal in between is seen, not lost in a stream's state.
class Lines {
 public:
  // nullopt at the end.
  std::optional<std::string> next() {
    prompt("> ");
    for (;;) {
      if (const size_t end = pending_.find('\n'); end != std::string::npos) {
        std::string line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        return line;
      }
      char buffer[4096];
      const ssize_t size = read(STDIN_FILENO, buffer, sizeof buffer);
      if (size > 0) {
        pending_.append(buffer, static_cast<size_t>(size));
      } else if (size < 0 && errno == EINTR) {
        prompt("\n(Ctrl-C again or Ctrl-D ends)\n> ");
      } else if (pending_.empty()) {
        return std::nullopt;
      } else {
        return std::exchange(pending_, "");
      }
    }
  }

 private:
  static void prompt(const char* text) {
    if (stdin_is_terminal() && stderr_is_terminal()) std::fputs(text, stderr);
  }

  std::string pending_;
};

// Writes the answer to what was said so far. The answer is added to the messages. Each turn draws
// from a seed of its own, so that equal turns need not get equal answers.
Result<StopReason> turn(const RunOptions& options, Engine& engine,
                        std::vector<ChatMessage>& messages, Output& out) {
  Session& session = *engine.session;
  session.reset_timings();
  Result<std::vector<TokenId>> ids = chat_ids(*engine.model, options.chat_settings, messages);
  if (!ids.ok()) return ids.status();
  Result<int> reused = session.rewind_to(*ids);
  if (!reused.ok()) return reused.status();
  if (Status status = session.feed(std::span(*ids).subspan(static_cast<size_t>(*reused)));
      !status.ok()) {
    return status;
  }
  GenerateParams params = options.generate;
  params.sampler.seed += messages.size();
  AnswerText text(out);
  Result<Generated> generated =
      session.generate(params, [&](std::string_view part) { return text.write(part); });
  if (!generated.ok()) return generated.status();
  out.write("\n");
  messages.push_back({"assistant", generated->text});
  return generated->reason;
}

}  // namespace

int converse(const RunOptions& options, Engine& engine) {
  std::vector<ChatMessage> messages;
  if (!options.system_prompt.empty()) messages.emplace_back("system", options.system_prompt);
  Output out;
  Lines lines;
  while (std::optional<std::string> line = lines.next()) {
    Interrupt::clear();
    if (line->empty()) continue;
    if (to_valid_utf8(*line) != *line) {
      warn("that line is not UTF-8; it was left out");
      continue;
    }
    messages.push_back({"user", std::move(*line)});
    Result<StopReason> reason = turn(options, engine, messages, out);
    if (const int code = out.finish(); code != kFine) return code;
    if (reason.ok()) {
      report_answer(options, *engine.session, *reason);
    } else if (reason.status().code() == StatusCode::cancelled) {
      warn("stopped by Ctrl-C");
      messages.pop_back();
    } else {
      return fail(reason.status());
    }
  }
  if (stdin_is_terminal() && stderr_is_terminal()) std::fputs("\n", stderr);
  return out.finish();
}

}  // namespace kvik::cli
