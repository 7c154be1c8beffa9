// kvik run: one answer to a prompt, or a conversation.
#include "run.h"

#include <memory>
#include <random>

#include "answer_text.h"
#include "arguments.h"
#include "commands.h"
#include "numbers.h"
#include "report.h"

namespace kvik::cli {
namespace {

void add_sampler_options(CLI::App& command, RunOptions& options) {
  SamplerParams& sampler = options.generate.sampler;
  sampler.temperature = 0.8F;
  sampler.top_p = 0.95F;
  sampler.min_p = 0.05F;
  command.add_option("--temp", sampler.temperature, "Temperature; 0: always the best token")
      ->transform(real_in(0, 1e6))
      ->capture_default_str();
  command.add_option("--top-k", options.top_k, "Only the K best tokens; 0: all")
      ->transform(integer_in(0, 1 << 30))
      ->capture_default_str();
  command.add_option("--top-p", sampler.top_p, "Only the best tokens that make up P")
      ->transform(real_in(1e-6, 1))
      ->capture_default_str();
  command
      .add_option("--min-p", sampler.min_p, "Only tokens at least P times as likely as the best")
      ->transform(real_in(0, 1))
      ->capture_default_str();
  command
      .add_option("--repeat-penalty", sampler.repeat_penalty, "Penalty of repeated tokens; 1: none")
      ->transform(real_in(1e-6, 1e6))
      ->capture_default_str();
  command
      .add_option("--repeat-last-n", sampler.repeat_last_n, "Tokens that the penalty looks back on")
      ->transform(integer_in(0, 1 << 20))
      ->capture_default_str();
  command.add_option("-s,--seed", options.seed, "Seed of the draws; -1: another one in each run")
      ->transform(integer_in(-1, INT64_MAX))
      ->capture_default_str();
}

// With temperature 0 the best token wins whatever these say.
void warn_of_idle_options(const CLI::App& command, const RunOptions& options) {
  if (options.generate.sampler.temperature > 0) return;
  for (const char* name : {"--top-k", "--top-p", "--min-p", "--seed"}) {
    if (command.get_option(name)->count() > 0) {
      warn(name_given(*command.get_option(name)) + " changes nothing with --temp 0");
    }
  }
}

// Options that contradict each other, which the parser does not see.
Status check_run(const RunOptions& options) {
  if (Status status = check(options.engine); !status.ok()) return status;
  const PromptOptions& prompt = options.prompt;
  if (!prompt.is_given() && options.output == "json") {
    return invalid_argument(name_given(*options.output_option) +
                            " json needs a prompt: give -p, -f or --ids");
  }
  if (!prompt.is_given() && options.prompt.special) {
    return invalid_argument(name_given(*prompt.special_option) + " needs a prompt: give -p or -f");
  }
  if (!options.system_prompt.empty() && prompt.is_given() && !options.chat) {
    return invalid_argument(name_given(*options.system_option) + " needs --chat");
  }
  if (const std::string given = options.chat_options.given();
      !given.empty() && prompt.is_given() && !options.chat) {
    return invalid_argument(given + " needs --chat");
  }
  for (const std::string& stop : options.generate.stop) {
    if (stop.empty())
      return invalid_argument(name_given(*options.stop_option) + ": the string is empty");
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

// The prompt's tokens, or for a conversation the template, before the weights are looked at.
Status read_prompt(const RunOptions& options, const Model& header, int context,
                   std::vector<TokenId>& ids) {
  if (!options.prompt.is_given()) {
    const Result<const ChatTemplate*> chat = header.chat_template();
    if (chat.ok() || options.chat_settings.own_template != nullptr) return {};
    return Status(chat.status().code(),
                  chat.status().message() + "; without a conversation: give a prompt with -p");
  }
  Result<std::vector<TokenId>> read = tokens_of_prompt(options, header);
  if (!read.ok()) return read.status();
  ids = std::move(read).value();
  return check_room(options.engine, header, context, ids);
}

int answer(const RunOptions& options, Engine& engine, const std::vector<TokenId>& ids) {
  Session& session = *engine.session;
  if (Status status = session.feed(ids); !status.ok()) return fail(status);
  Output out;
  const bool as_text = options.output == "text";
  AnswerText text(out);
  TextCallback on_text;
  if (as_text) on_text = [&](std::string_view part) { return text.write(part); };
  Result<Generated> generated = session.generate(options.generate, on_text);
  if (as_text && (!generated.ok() || says_more(options, session, generated->reason))) {
    text.end_line_before_message();
  }
  if (as_text) text.end_line_on_terminal();
  if (!generated.ok()) return fail(generated.status());
  if (!as_text) {
    const nlohmann::ordered_json json = {{"prompt_ids", ids},
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
  if (!chat_settings.ok()) return fail_or_usage(chat_settings.status());
  options.chat_settings = std::move(chat_settings).value();
  std::vector<TokenId> ids;
  Result<Engine> engine = make_engine(options.engine, [&](const Model& header, int context) {
    return read_prompt(options, header, context, ids);
  });
  if (!engine.ok()) return fail(engine.status());
  Interrupt::install();
  return options.prompt.is_given() ? answer(options, *engine, ids) : converse(options, *engine);
}

}  // namespace

bool says_more(const RunOptions& options, const Session& session, StopReason reason) {
  return options.perf || reason == StopReason::context_full || reason == StopReason::cancelled ||
         session.timings().shifts > 0 ||
         (options.engine.overflow == "window" && session.num_cached() > session.context());
}

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
      ->transform(integer_in(-1, 1 << 30))
      ->capture_default_str();
  add_sampler_options(*command, *options);
  options->stop_option =
      command
          ->add_option("--stop", options->generate.stop, "Stop before this text; may be repeated")
          ->type_name("TEXT")
          ->allow_extra_args(false);
  command->add_flag("--ignore-eos", options->generate.ignore_end_tokens,
                    "Go on when the model ends its answer");
  // Messages are plain text: what they spell never becomes a control token.
  command->add_flag("--chat", options->chat, "The prompt is a message; use the model's template")
      ->excludes(options->prompt.ids_option, options->prompt.special_option);
  options->system_option =
      command->add_option("--system-prompt", options->system_prompt, "First message of a chat")
          ->type_name("TEXT");
  add_chat_options(*command, options->chat_options);
  command->add_flag("--perf", options->perf,
                    "Say on stderr how fast it was and what the cache took");
  options->output_option = add_output_option(*command, options->output, {"text", "json"});
  return {command, [options, command] {
            warn_of_idle_options(*command, *options);
            return run(*options);
          }};
}

}  // namespace kvik::cli
