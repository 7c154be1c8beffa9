// kvik eval: what formats of the cache do to a model's predictions, on a text.
#include <chrono>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "eval_report.h"
#include "kv.h"
#include "kv_types.h"
#include "kvik/core/thread_team.h"
#include "kvik/eval/candidate.h"
#include "kvik/eval/compare.h"
#include "numbers.h"
#include "options.h"
#include "prompt.h"

namespace kvik::cli {
namespace {

// --long: contexts of at least so many tokens, of which the last positions are scored.
constexpr int kLongContext = 8192;
constexpr int kLongPositions = 512;

const std::vector<std::string> kDefaultFormats = {
    "f16", "tq8", "tq4", "tcq4", "tcq4:tcq3", "tcq3", "ggml-q8_0", "ggml-q4_0", "ggml-q4_0-rot"};

struct EvalOptions {
  std::string model, output;
  PromptOptions prompt;
  int context = 512;
  int chunks = 0;
  int batch = 512;
  int threads = num_usable_processors();
  int64_t first_position = 0;
  bool is_long = false;
  bool all_positions = false;
  std::vector<std::string> formats;
  KvOptions kv;  // its calibration alone
  CLI::Option* context_option = nullptr;
  CLI::Option* chunks_option = nullptr;
  CLI::Option* formats_option = nullptr;
  const CLI::Option* first_position_option = nullptr;
};

// Those of the command line, which must all fit; or those of the default list that do.
Result<std::vector<Candidate>> make_candidates(EvalOptions& options, ModelRunner& runner) {
  const Model& model = runner.model();
  const bool is_default = options.formats_option->count() == 0;
  std::vector<Candidate> candidates;
  std::string left_out;
  std::shared_ptr<const KeyCalibration> calibration;  // one for all of them
  for (const std::string& name : is_default ? kDefaultFormats : options.formats) {
    const Result<CandidateFormat> parsed = parse_candidate_format(name);
    if (!parsed.ok()) return parsed.status();
    if (calibration == nullptr && parsed->is_calibrated && check(*parsed, model.info()).ok()) {
      options.kv.type_k = kv_code_name(parsed->format.k);
      Result<std::shared_ptr<const KeyCalibration>> own = key_calibration(options.kv, runner);
      if (!own.ok()) return own.status();
      calibration = std::move(own).value();
    }
    Result<Candidate> candidate = make_candidate(model, *parsed, calibration);
    if (candidate.ok()) {
      candidates.push_back(std::move(candidate).value());
    } else if (is_default) {
      left_out += (left_out.empty() ? "" : ", ") + name;
    } else {
      return candidate.status();
    }
  }
  if (!left_out.empty()) {
    note("left out, as the model's head dims do not fit: " + left_out);
  }
  return candidates;
}

// Percentage and time left, on a terminal.
class EvalProgress {
 public:
  bool operator()(const CompareProgress& at) {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const double share = static_cast<double>(at.done) / static_cast<double>(at.total);
    progress_.show(format("chunk %d of %d, %.0f %%, %s left", at.chunk + 1, at.num_chunks,
                          100 * share, duration_text(seconds / share - seconds).c_str()));
    return !Interrupt::flag().load();
  }
  void clear() { progress_.clear(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Progress progress_;
};

Status check(EvalOptions& options) {
  if (!options.prompt.is_given()) {
    return invalid_argument(
        "eval: give a text with -f, for example -f $(scripts/fetch-text prideprejudice), which "
        "fetches a novel");
  }
  if (options.context < 4) {
    return invalid_argument("eval: " + name_given(*options.context_option) + " must be at least 4");
  }
  if (options.first_position % 512 != 0) {
    return invalid_argument(format("%s %lld is no multiple of 512",
                                   name_given(*options.first_position_option).c_str(),
                                   static_cast<long long>(options.first_position)));
  }
  if (!options.is_long) return {};
  if (options.all_positions) {
    return invalid_argument(
        "--long scores the end of a context, --all-positions all; leave one out");
  }
  if (options.context_option->count() == 0) options.context = kLongContext;
  if (options.context < kLongContext) {
    return invalid_argument(format("--long wants a context of at least %d tokens, not %d",
                                   kLongContext, options.context));
  }
  return {};
}

CompareParams params_of(const EvalOptions& options) {
  CompareParams params;
  params.context = options.context;
  params.first_position = options.first_position;
  if (options.is_long) {
    params.first_scored = options.context - 1 - kLongPositions;
    params.max_chunks = 1;
  }
  if (options.chunks_option->count() > 0) params.max_chunks = options.chunks;
  if (options.all_positions) params.first_scored = 0;
  return params;
}

int finish(const EvalOptions& options, const EvalReport& report) {
  Output out;
  if (options.output == "json") {
    out.write_json(eval_json(report));
  } else if (options.output == "md") {
    out.write(eval_markdown(report));
  } else if (options.output == "html") {
    out.write(eval_html(report));
  } else {
    out.write(eval_text(report));
  }
  return out.finish();
}

std::string text_name(const PromptOptions& prompt) {
  if (!prompt.file.empty()) return prompt.file == "-" ? "standard input" : prompt.file;
  return prompt.ids_file.empty() ? "the text of -p" : prompt.ids_file;
}

// What the header alone can refuse: formats that were named, the file of a calibration, a text
// shorter than a chunk.
Status check_against(const EvalOptions& options, const Model& header, size_t num_tokens) {
  bool is_any_calibrated = options.formats_option->count() == 0;
  if (options.formats_option->count() > 0) {
    for (const std::string& name : options.formats) {
      const Result<CandidateFormat> parsed = parse_candidate_format(name);
      if (!parsed.ok()) return parsed.status();
      const Result<Candidate> candidate = make_candidate(header, *parsed);
      if (!candidate.ok()) return candidate.status();
      is_any_calibrated |= parsed->is_calibrated && is_rotated(parsed->format.k);
    }
  }
  if (is_any_calibrated) {
    if (Status status = check_calibration(options.kv, header); !status.ok()) return status;
  }
  if (num_tokens >= static_cast<size_t>(options.context)) return {};
  return invalid_argument(
      format("the text has %zu tokens; one chunk needs %d", num_tokens, options.context));
}

int evaluate(EvalOptions options) {
  if (Status status = check(options); !status.ok()) return usage_error(status.message());
  Result<std::shared_ptr<const Model>> model = load_header(options.model);
  if (!model.ok()) return fail(model.status());
  const Result<std::vector<TokenId>> ids = prompt_ids(options.prompt, **model);
  if (!ids.ok()) return fail(ids.status());
  if (Status status = check_against(options, **model, ids->size()); !status.ok()) {
    return fail(status);
  }
  ModelOptions model_options;
  model_options.num_threads = options.threads;
  model = Model::load(options.model, model_options);
  if (!model.ok()) return fail(model.status());
  if (const int trained = (*model)->info().context_length; options.context > trained) {
    warn(format("%s %d is more than the %d tokens that the model was trained for",
                name_given(*options.context_option).c_str(), options.context, trained));
  }
  RunnerOptions runner_options;
  runner_options.num_threads = options.threads;
  runner_options.max_batch_tokens = options.batch;
  Result<std::unique_ptr<ModelRunner>> runner = ModelRunner::create(*model, runner_options);
  if (!runner.ok()) return fail(runner.status());
  Interrupt::install();
  Result<std::vector<Candidate>> candidates = make_candidates(options, **runner);
  if (!candidates.ok()) return fail(candidates.status());

  EvalProgress progress;
  CompareParams params = params_of(options);
  params.on_progress = [&](const CompareProgress& at) { return progress(at); };
  Result<Comparison> comparison = compare_formats(**runner, *ids, *candidates, params);
  progress.clear();
  if (!comparison.ok()) return fail(comparison.status());
  EvalReport report;
  report.model_name = (*model)->info().name.empty() ? options.model : (*model)->info().name;
  report.model_file = options.model;
  report.text = text_name(options.prompt);
  report.threads = options.threads;
  report.comparison = std::move(comparison).value();
  return finish(options, report);
}

}  // namespace

Command add_eval(CLI::App& program) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = program.add_subcommand(
      "eval",
      "Compare cache formats with an f32 cache on a text: KL divergence, perplexity, bytes");
  add_model_option(*command, options->model);
  add_prompt_options(*command, options->prompt, /*ids_too=*/true);
  const auto add_count = [&](const char* name, int& value, int low, const char* what) {
    return command->add_option(name, value, what)
        ->transform(integer_in(low, 1 << 20))
        ->capture_default_str();
  };
  options->context_option = add_count("-c,--ctx-size", options->context, 1, "Tokens of a chunk");
  options->chunks_option =
      command->add_option("--chunks", options->chunks, "Only the first so many chunks")
          ->transform(integer_in(1, 1 << 30));
  add_count("-b,--batch-size", options->batch, 1, "Most tokens computed at once");
  command->add_option("-t,--threads", options->threads, "Threads")
      ->transform(integer_in(1, 1024))
      ->capture_default_str();
  options->formats = kDefaultFormats;
  options->formats_option =
      command
          ->add_option(
              "--kv", options->formats,
              "Formats to compare, like f16,tcq4:tcq3+first4: as for run, and ggml-q8_0, "
              "ggml-q5_1, "
              "ggml-q4_0, each also with -rot; +first4 and +recent64 keep tokens exact, +skip0/-1 "
              "layers in f16, +nocalib leaves keys uncalibrated")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->capture_default_str();
  options->formats_option->transform(kv_way_or_ggml(*options->formats_option));
  add_calibration_options(*command, options->kv);
  command->add_flag("--all-positions", options->all_positions,
                    "Score every position of a chunk, not the second half");
  command->add_flag("--long", options->is_long,
                    "Score the last 512 positions of a long context (-c 8192 or more) only");
  options->first_position_option =
      command
          ->add_option(
              "--first-position", options->first_position,
              "Position of each chunk's first token, a multiple of 512: how formats do far "
              "from where keys were calibrated")
          ->transform(integer_in(0, 1 << 30))
          ->capture_default_str();
  add_output_option(*command, options->output, {"text", "json", "md", "html"});
  return {command, [options] { return evaluate(*options); }};
}

}  // namespace kvik::cli
