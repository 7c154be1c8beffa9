// kvik score: the log probability of each token of a text.
#include <memory>

#include "commands.h"
#include "options.h"
#include "prompt.h"
#include "report.h"
#include "terminal_text.h"

namespace kvik::cli {
namespace {

struct ScoreOptions {
  EngineOptions engine;
  PromptOptions prompt;
  std::string output;
};

int score(ScoreOptions& options) {
  if (Status status = check(options.engine); !status.ok()) return usage_error(status.message());
  if (!options.prompt.is_given()) return usage_error("score: give a text with -p, -f or --ids");
  std::vector<TokenId> ids;
  Result<Engine> engine = make_engine(options.engine, [&](const Model& header, int context) {
    Result<std::vector<TokenId>> read = prompt_ids(options.prompt, header);
    if (!read.ok()) return read.status();
    ids = std::move(read).value();
    return check_room(options.engine, header, context, ids);
  });
  if (!engine.ok()) return fail(engine.status());
  Interrupt::install();
  Result<std::vector<double>> logprobs = engine->session->score(ids);
  if (!logprobs.ok()) return fail(logprobs.status());
  warn_of_shifts(*engine->session);
  Output out;
  if (options.output == "json") {
    out.write_json_line({{"ids", ids}, {"logprobs", *logprobs}});
    return out.finish();
  }
  std::string lines;
  for (size_t i = 0; i < logprobs->size(); ++i) {
    const std::string_view piece = engine->model->tokenizer().token_bytes(ids[i + 1]).value();
    lines += format("%6d %10.5f  ", ids[i + 1], (*logprobs)[i]) + quoted(piece) + "\n";
  }
  out.write(lines);
  return out.finish();
}

}  // namespace

Command add_score(CLI::App& program) {
  auto options = std::make_shared<ScoreOptions>();
  CLI::App* command =
      program.add_subcommand("score", "Print the log probability of each next token of a text");
  add_engine_options(*command, options->engine);
  add_overflow_option(*command, options->engine);
  add_prompt_options(*command, options->prompt, /*ids_too=*/true);
  add_output_option(*command, options->output, {"text", "json"});
  return {command, [options] { return score(*options); }};
}

}  // namespace kvik::cli
