// kvik calibrate: measures centres and diagonals for tq and tcq keys, into a file.
#include <filesystem>
#include <memory>

#include "commands.h"
#include "kv.h"
#include "kvik/core/thread_team.h"
#include "kvik/engine/key_calibration.h"
#include "options.h"

namespace kvik::cli {
namespace {

struct CalibrateOptions {
  std::string model, output;
  std::vector<std::string> texts;
  int frame = 128;
  int threads = 1;
  int batch = 512;
};

int run(const CalibrateOptions& options) {
  ModelOptions model_options;
  model_options.num_threads = options.threads;
  Result<std::shared_ptr<const Model>> model = Model::load(options.model, model_options);
  if (!model.ok()) return fail(model.status());
  RunnerOptions runner_options;
  runner_options.num_threads = options.threads;
  runner_options.max_batch_tokens = options.batch;
  Result<std::unique_ptr<ModelRunner>> runner = ModelRunner::create(*model, runner_options);
  if (!runner.ok()) return fail(runner.status());
  std::vector<std::vector<TokenId>> texts;
  for (const std::string& path : options.texts) {
    Result<std::string> text = read_text(path);
    if (!text.ok()) return fail(text.status());
    Result<std::vector<TokenId>> tokens = (*model)->tokenizer().encode(*text);
    if (!tokens.ok()) return fail(tokens.status());
    texts.push_back(std::move(tokens).value());
  }
  Interrupt::install();
  std::string path = options.output;
  if (path.empty()) {
    Result<uint64_t> fingerprint = model_fingerprint(**model);
    if (!fingerprint.ok()) return fail(fingerprint.status());
    path = calibration_path(cache_folder(), *fingerprint, options.frame);
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  }
  Result<KeyCalibration> made = calibrate(**runner, std::move(texts), options.frame);
  if (!made.ok()) return fail(made.status());
  if (Status status = save_calibration(*made, **model, path); !status.ok()) return fail(status);
  Output out;
  out.write(path + "\n");
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
      ->type_name("FILE");
  command->add_option("--kv-frame", options->frame, "Tokens of a frame: 128, 256 or 512")
      ->check(CLI::IsMember({128, 256, 512}))
      ->capture_default_str();
  command
      ->add_option("-o,--output", options->output,
                   "File to write; without: where --kv-calib auto looks for it")
      ->type_name("FILE");
  command->add_option("-b,--batch-size", options->batch, "Most tokens computed at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("-t,--threads", options->threads, "Threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  return {command, [options] { return run(*options); }};
}

}  // namespace kvik::cli
