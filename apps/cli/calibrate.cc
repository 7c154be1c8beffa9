// kvik calibrate: measures centres and diagonals for tq and tcq keys, into a file.
#include <filesystem>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "kv.h"
#include "kvik/core/file_writer.h"
#include "kvik/core/thread_team.h"
#include "kvik/engine/key_calibration.h"
#include "numbers.h"
#include "options.h"
#include "terminal_text.h"

namespace kvik::cli {
namespace {

struct CalibrateOptions {
  std::string model, output;
  const CLI::Option* output_option = nullptr;
  std::vector<std::string> texts;
  int frame = 128;
  int threads = 1;
  int batch = 512;
};

// The texts as tokens; empty if none were named.
Result<std::vector<std::vector<TokenId>>> read_texts(const CalibrateOptions& options,
                                                     const Model& model) {
  std::vector<std::vector<TokenId>> texts;
  for (const std::string& path : options.texts) {
    Result<std::string> text = read_text(path);
    if (!text.ok()) return text.status();
    Result<std::vector<TokenId>> tokens = model.tokenizer().encode(*text);
    if (!tokens.ok()) return tokens.status();
    if (tokens->empty()) return invalid_argument(path + ": the text is empty");
    texts.push_back(std::move(tokens).value());
  }
  return texts;
}

// Where the file goes, with its folder made if it is the cache's. Errors: what could not be written
// is better known before the keys are measured.
Result<std::string> output_path(const CalibrateOptions& options, const Model& model) {
  std::string path = options.output;
  std::error_code error;
  if (path.empty() && options.output_option->count() > 0) {
    return invalid_argument(name_given(*options.output_option) + ": the name is empty");
  }
  if (path.empty()) {
    const Result<ModelFingerprint> fingerprint = model_fingerprint(model);
    if (!fingerprint.ok()) return fingerprint.status();
    path = calibration_path(cache_folder(), *fingerprint, options.frame);
    if (Status status = make_folder_of(path); !status.ok()) return status;
  }
  if (path == "-") {
    return invalid_argument(name_given(*options.output_option) +
                            " -: a calibration goes to a file; name one");
  }
  std::vector<std::string> inputs = options.texts;
  inputs.push_back(options.model);
  for (const std::string& input : inputs) {
    if (!std::filesystem::equivalent(path, input, error)) continue;
    return invalid_argument(path + ": is read by this command; name another file to write");
  }
  if (Status status = check_writable(path); !status.ok()) return status;
  return path;
}

int run(const CalibrateOptions& options) {
  Result<std::shared_ptr<const Model>> header = load_header(options.model);
  if (!header.ok()) return fail(header.status());
  Result<std::vector<std::vector<TokenId>>> texts = read_texts(options, **header);
  if (!texts.ok()) return fail(texts.status());
  const Result<std::string> path = output_path(options, **header);
  if (!path.ok()) return fail_or_usage(path.status());

  ModelOptions model_options;
  model_options.num_threads = options.threads;
  Result<std::shared_ptr<const Model>> model = Model::load(options.model, model_options);
  if (!model.ok()) return fail(model.status());
  RunnerOptions runner_options;
  runner_options.num_threads = options.threads;
  runner_options.max_batch_tokens = options.batch;
  Result<std::unique_ptr<ModelRunner>> runner = ModelRunner::create(*model, runner_options);
  if (!runner.ok()) return fail(runner.status());
  Interrupt::install();
  Result<KeyCalibration> made = calibrate(**runner, std::move(texts).value(), options.frame);
  if (!made.ok()) return fail(made.status());
  if (Status status = save_calibration(*made, **model, *path); !status.ok()) return fail(status);
  Output out;
  out.write(stdout_is_terminal() ? one_line(*path) + "\n" : *path + "\n");
  return out.finish();
}

}  // namespace

Command add_calibrate(CLI::App& program) {
  auto options = std::make_shared<CalibrateOptions>();
  options->threads = num_usable_processors();
  CLI::App* command = program.add_subcommand(
      "calibrate", "Measure the keys of a model for tq and tcq types, and print the file's path");
  add_model_option(*command, options->model);
  command
      ->add_option("-f,--file", options->texts,
                   "Texts to measure on, about 2,000 tokens; without: those that come with kvik")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command->add_option("--kv-frame", options->frame, "Tokens of a frame: 128, 256 or 512")
      ->check(CLI::IsMember({"128", "256", "512"}))
      ->transform(integer_in(1, 512).description(""))
      ->capture_default_str();
  options->output_option =
      command
          ->add_option("-o,--output", options->output,
                       "File to write; without: where --kv-calib auto looks for it")
          ->type_name("FILE");
  command->add_option("-b,--batch-size", options->batch, "Most tokens computed at once")
      ->transform(integer_in(1, 1 << 20))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "Threads")
      ->transform(integer_in(1, 1024))
      ->capture_default_str();
  return {command, [options] { return run(*options); }};
}

}  // namespace kvik::cli
