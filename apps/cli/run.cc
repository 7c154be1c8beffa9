// kvik run: one answer to a prompt, or a conversation.
#include "run.h"

#include <memory>
#include <random>

#include "commands.h"
#include "report.h"

namespace kvik::cli {
namespace {

void add_sampler_options(CLI::App& command, RunOptions& options) {
  SamplerParams& sampler = options.generate.sampler;
  sampler.temperature = 0.8F;
  sampler.top_p = 0.95F;
  sampler.min_p = 0.05F;
  command.add_option("--temp", sampler.temperature, "Temperature; 0: always the best token")
      ->check(CLI::Range(0.0F, 1e6F))
      ->capture_default_str();
  command.add_option("--top-k", options.top_k, "Only the K best tokens; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command.add_option("--top-p", sampler.top_p, "Only the best tokens that make up P")
      ->check(CLI::Range(0.0F, 1.0F))
      ->capture_default_str();
  command
      .add_option("--min-p", sampler.min_p, "Only tokens at least P times as likely as the best")
      ->check(CLI::Range(0.0F, 1.0F))
      ->capture_default_str();
  command
      .add_option("--repeat-penalty", sampler.repeat_penalty, "Penalty of repeated tokens; 1: none")
      ->check(CLI::Range(1e-6F, 1e6F))
      ->capture_default_str();
  command
      .add_option("--repeat-last-n", sampler.repeat_last_n, "Tokens that the penalty looks back on")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command.add_option("-s,--seed", options.seed, "Seed of the draws; -1: another one in each run")
      ->check(CLI::Range(int64_t{-1}, INT64_MAX))
      ->capture_default_str();
}

// With temperature 0 the best token wins whatever these say.
void warn_of_idle_options(const CLI::App& command, const RunOptions& options) {
  if (options.generate.sampler.temperature > 0) return;
  for (const char* name : {"--top-k", "--top-p", "--min-p", "--seed"}) {
    if (command.get_option(name)->count() > 0) {
      warn(std::string(name) + " changes nothing with --temp 0");
    }
  }
}

// Options that contradict each other, which the parser does not see.
Status check_run(const RunOptions& options) {
  if (Status status = check(options.engine); !status.ok()) return status;
  const PromptOptions& prompt = options.prompt;
  const bool by_ids = prompt.ids_option->count() > 0;
  if (options.chat && by_ids) return invalid_argument("--chat and --ids exclude each other");
  if (options.chat && options.prompt.special) {
    return invalid_argument("--chat and --special exclude each other: messages are plain text");
  }
  if (!prompt.is_given() && options.output == "json") {
    return invalid_argument("-o json needs a prompt: give -p, -f or --ids");
  }
  if (!prompt.is_given() && options.prompt.special) {
    return invalid_argument("--special needs a prompt: give -p or -f");
  }
  if (!options.system_prompt.empty() && prompt.is_given() && !options.chat) {
    return invalid_argument("--system-prompt needs --chat");
  }
  if (const std::string given = options.chat_options.given();
      !given.empty() && prompt.is_given() && !options.chat) {
    return invalid_argument(given + " needs --chat");
  }
  for (const std::string& stop : options.generate.stop) {
    if (stop.empty()) return invalid_argument("--stop: the string is empty");
  }
  return {};
}

Result<std::vector<TokenId>> tokens_of_prompt(const RunOptions& options, const Model& model) {
  if (!options.chat) return prompt_ids(options.prompt, model);
  Result<std::string> text = prompt_text(options.prompt);
  if (!text.ok()) return text.status();
  if (text->empty()) return invalid_argument("the prompt is empty");
  std::vector<ChatMessage> messages;
  if (!options.system_prompt.empty()) messages.push_back({"system", options.system_prompt});
  messages.push_back({"user", std::move(text).value()});
  return chat_ids(model, options.chat_settings, std::move(messages));
}

int answer(const RunOptions& options, Engine& engine) {
  Result<std::vector<TokenId>> ids = tokens_of_prompt(options, *engine.model);
  if (!ids.ok()) return fail(ids.status());
  Session& session = *engine.session;
  if (Status status = session.feed(*ids); !status.ok()) return fail(status);
  Output out;
  const bool as_text = options.output == "text";
  TextCallback on_text;
  if (as_text) on_text = [&](std::string_view text) { return out.write(text); };
  Result<Generated> generated = session.generate(options.generate, on_text);
  if (as_text && stdout_is_terminal()) out.write("\n");
  if (!generated.ok()) return fail(generated.status());
  if (!as_text) {
    const nlohmann::ordered_json json = {{"prompt_ids", *ids},
                                         {"ids", generated->ids},
                                         {"text", generated->text},
                                         {"stop_reason", stop_reason_name(generated->reason)},
                                         {"seed", options.generate.sampler.seed},
                                         {"timings", timings_json(session.timings())},
                                         {"kv", kv_json(session, options.engine)}};
    out.write_json_line(json);
  }
  if (const int code = out.finish(); code != kFine) return code;
  report_answer(options, session, generated->reason);
  return generated->reason == StopReason::cancelled ? kFailed : kFine;
}

int run(RunOptions& options) {
  if (Status status = check_run(options); !status.ok()) return usage_error(status.message());
  SamplerParams& sampler = options.generate.sampler;
  if (options.top_k > 0) sampler.top_k = options.top_k;
  // Drawn within 32 bits, so that JSON readers keep it exactly.
  sampler.seed = options.seed >= 0 ? static_cast<uint64_t>(options.seed) : std::random_device{}();
  if (options.num_predict >= 0) options.generate.max_tokens = options.num_predict;
  Result<ChatSettings> chat_settings = read_chat_settings(options.chat_options);
  if (!chat_settings.ok()) return fail(chat_settings.status());
  options.chat_settings = std::move(chat_settings).value();
  Result<Engine> engine = make_engine(options.engine);
  if (!engine.ok()) return fail(engine.status());
  Interrupt::install();
  return options.prompt.is_given() ? answer(options, *engine) : converse(options, *engine);
}

}  // namespace

void report_answer(const RunOptions& options, Session& session, StopReason reason) {
  if (reason == StopReason::context_full) {
    warn(format("stopped: the context of %d tokens is full; a larger -c makes room",
                session.context()));
  }
  if (options.engine.overflow == "window" && session.num_cached() > session.context()) {
    warn(
        format("the context of %d tokens was full and rolled on: each token saw the newest %d "
               "(--overflow window)",
               session.context(), session.context()));
  }
  warn_of_shifts(session);
  if (reason == StopReason::cancelled) warn("stopped by Ctrl-C");
  if (options.perf || (!options.prompt.is_given() && stderr_is_terminal())) {
    const bool colour = stderr_has_colour();
    const std::string line = (colour ? "\x1b[2m[" : "[") + perf_line(session, options.engine) +
                             (colour ? "]\x1b[0m\n" : "]\n");
    std::fputs(line.c_str(), stderr);
  }
}

Command add_run(CLI::App& program) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command =
      program.add_subcommand("run", "Let the model write; a conversation if no prompt is given");
  add_engine_options(*command, options->engine);
  add_overflow_option(*command, options->engine);
  add_prompt_options(*command, options->prompt, /*ids_too=*/true);
  command
      ->add_option("-n,--predict", options->num_predict,
                   "Most tokens to write; -1: until the end or a full context")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  add_sampler_options(*command, *options);
  command->add_option("--stop", options->generate.stop, "Stop before this text; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command->add_flag("--ignore-eos", options->generate.ignore_end_tokens,
                    "Go on when the model ends its answer");
  command->add_flag("--chat", options->chat, "The prompt is a message; use the model's template");
  command->add_option("--system-prompt", options->system_prompt, "First message of a chat")
      ->type_name("TEXT");
  add_chat_options(*command, options->chat_options);
  command->add_flag("--perf", options->perf,
                    "Say on stderr how fast it was and what the cache took");
  add_output_option(*command, options->output, {"text", "json"});
  return {command, [options, command] {
            warn_of_idle_options(*command, *options);
            return run(*options);
          }};
}

}  // namespace kvik::cli
