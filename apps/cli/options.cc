#include "options.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "cli.h"
#include "kvik/core/thread_team.h"
#include "kvik/model/stream_decoder.h"

namespace kvik::cli {

using nlohmann::json;

std::vector<std::string> with_long_names(std::vector<std::string> arguments) {
  static const std::set<std::string> kTakesText = {"-p",     "--prompt", "--stop",  "-f",
                                                   "--file", "-m",       "--model", "--ids"};
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i > 0 && kTakesText.contains(arguments[i - 1])) continue;
    for (const auto& [name, long_name] :
         {std::pair{"-ctk", "--cache-type-k"}, {"-ctv", "--cache-type-v"}}) {
      std::string& argument = arguments[i];
      const size_t size = std::strlen(name);
      if (argument.rfind(name, 0) == 0 && (argument.size() == size || argument[size] == '=')) {
        argument = long_name + argument.substr(size);
      }
    }
  }
  return arguments;
}

void name_environment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (name == "help" || name == "version") continue;
    std::string variable = "KVIK_";
    for (const char c : name) {
      variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    option->envname(variable);
  }
  for (CLI::App* command : app.get_subcommands({})) name_environment(*command);
}

void add_output_option(CLI::App& command, std::string& output, std::vector<std::string> choices) {
  output = choices.front();
  command.add_option("-o,--output", output, "Form of the output")
      ->check(CLI::IsMember(std::move(choices)))
      ->capture_default_str();
}

void add_model_option(CLI::App& command, std::string& path) {
  command.add_option("-m,--model", path, "Model file (GGUF)")->required()->type_name("FILE");
}

void add_engine_options(CLI::App& command, EngineOptions& options, int default_context) {
  options.context = default_context;
  options.threads = num_usable_processors();
  add_model_option(command, options.model);
  command
      .add_option("-c,--ctx-size", options.context,
                  "Context in tokens; 0: as the model was trained")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command.add_option("-b,--batch-size", options.batch, "Most tokens computed at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("-t,--threads", options.threads, "Threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_kv_options(command, options.kv);
  command.add_option("--kv-layout", options.layout, "How the cache lies in memory")
      ->check(CLI::IsMember({"paged", "contiguous"}))
      ->capture_default_str();
  options.block_size_option =
      command.add_option("--block-size", options.block_size, "Tokens of a block, a multiple of 16")
          ->check(CLI::Range(16, 1 << 20))
          ->capture_default_str();
}

void add_overflow_option(CLI::App& command, EngineOptions& options) {
  command
      .add_option("--overflow", options.overflow,
                  "When the context is full: stop, go on with each token seeing the newest -c "
                  "tokens (window), or forget half of what --keep does not keep and go on (shift; "
                  "needs tq or tcq keys)")
      ->check(CLI::IsMember({"stop", "window", "shift"}))
      ->capture_default_str();
  options.keep_option =
      command
          .add_option("--keep", options.keep,
                      "Tokens at the start that --overflow shift keeps; rounded up to whole frames "
                      "and blocks")
          ->check(CLI::Range(0, 1 << 30))
          ->capture_default_str();
}

namespace {

// Shift moves keys that are stored in frames; nothing else of a cache can move.
Status check_shift(const EngineOptions& options) {
  if (options.overflow != "shift") {
    if (options.keep_option == nullptr || options.keep_option->count() == 0) return {};
    return invalid_argument("--keep has no meaning without --overflow shift");
  }
  const KvOptions& kv = options.kv;
  const std::string needs = "--overflow shift moves tq and tcq keys in calibrated frames; ";
  if (options.layout == "contiguous") {
    return invalid_argument(
        "--overflow shift takes blocks out, which --kv-layout contiguous cannot; leave one out");
  }
  if (kv.is_auto) {
    return invalid_argument(needs + "--kv auto may take others: name a type or a --kv-quality");
  }
  if (kv.quality.empty() && !is_rotated(kv.format().k)) {
    return invalid_argument(needs + std::string(kv_code_name(kv.format().k)) +
                            " keys cannot move: choose --kv tq8, tq4, tcq4 or the like");
  }
  if (kv.calibration == "off") {
    return invalid_argument(needs + "leave --kv-calib off out");
  }
  if (kv.recent > 0 || !kv.skip_layers.empty()) {
    return invalid_argument(needs + "f16 rows of --kv-recent and --kv-skip-layers cannot move");
  }
  return {};
}

}  // namespace

Status check(const EngineOptions& options) {
  if (Status status = check(options.kv); !status.ok()) return status;
  if (options.block_size % 16 != 0) {
    return invalid_argument("--block-size " + std::to_string(options.block_size) +
                            ": give a multiple of 16");
  }
  if (options.layout == "contiguous" && options.block_size_option->count() > 0) {
    return invalid_argument(
        "--block-size has no meaning with --kv-layout contiguous; leave it out");
  }
  if (options.layout == "contiguous" && options.overflow == "window") {
    return invalid_argument(
        "--overflow window gives blocks back, which --kv-layout contiguous cannot; leave one out");
  }
  return check_shift(options);
}

Result<Engine> make_engine(EngineOptions& options) {
  Engine engine;
  ModelOptions model_options;
  model_options.num_threads = options.threads;
  Result<std::shared_ptr<const Model>> model = Model::load(options.model, model_options);
  if (!model.ok()) return model.status();
  engine.model = std::move(model).value();

  RunnerOptions runner_options;
  runner_options.num_threads = options.threads;
  runner_options.max_batch_tokens = options.batch;
  Result<std::unique_ptr<ModelRunner>> runner = ModelRunner::create(engine.model, runner_options);
  if (!runner.ok()) return runner.status();
  engine.runner = std::move(runner).value();

  const int context = options.context > 0 ? options.context : engine.model->info().context_length;
  ModelCacheOptions cache;
  cache.block_size = options.block_size;
  cache.max_tokens = context;
  cache.max_batch_tokens = options.batch;
  cache.contiguous = options.layout == "contiguous";
  if (options.overflow == "window") cache.window = context;
  if (Status status = resolve(options.kv, *engine.model, cache); !status.ok()) return status;
  Result<std::shared_ptr<const KeyCalibration>> calibration =
      key_calibration(options.kv, *engine.runner);
  if (!calibration.ok()) return calibration.status();

  SessionOptions session_options;
  session_options.context = context;
  session_options.kv_format = options.kv.format();
  session_options.kv_protection = options.kv.protection(engine.model->info());
  session_options.key_calibration = std::move(calibration).value();
  session_options.block_size = options.block_size;
  session_options.contiguous = options.layout == "contiguous";
  if (options.overflow == "window") session_options.overflow = Overflow::window;
  if (options.overflow == "shift") session_options.overflow = Overflow::shift;
  session_options.keep = options.keep;
  Result<std::unique_ptr<Session>> session = Session::create(engine.runner, session_options);
  if (!session.ok()) return session.status();
  engine.session = std::move(session).value();
  engine.session->set_cancel_flag(&Interrupt::flag());
  if (options.context > engine.model->info().context_length) {
    warn(format("-c %d is more than the %d tokens that the model was trained for", options.context,
                engine.model->info().context_length));
  }
  return engine;
}

Result<std::shared_ptr<const Model>> load_header(const std::string& path) {
  ModelOptions options;
  options.check_weights = false;
  return Model::load(path, options);
}

namespace {

Result<std::string> read_file(const std::string& path) {
  std::FILE* const file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return Status(StatusCode::io_error, path + ": cannot open (" + std::strerror(errno) + ")");
  }
  std::string text;
  char buffer[1 << 16];
  while (const size_t size = std::fread(buffer, 1, sizeof buffer, file)) text.append(buffer, size);
  const int error = std::ferror(file) != 0 ? errno : 0;
  if (file != stdin) std::fclose(file);
  if (error != 0) {
    return Status(StatusCode::io_error, path + ": cannot read (" + std::strerror(error) + ")");
  }
  return text;
}

Result<json> read_json(const std::string& path) {
  Result<std::string> text = read_file(path);
  if (!text.ok()) return text.status();
  json value = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return Status(StatusCode::corrupt, path + ": not JSON");
  return value;
}

}  // namespace

Result<std::string> read_text(const std::string& path) {
  Result<std::string> text = read_file(path);
  if (!text.ok()) return text;
  const std::string valid = to_valid_utf8(*text);
  if (valid == *text) return text;
  const auto differs = std::mismatch(text->begin(), text->end(), valid.begin(), valid.end()).first;
  return Status(StatusCode::corrupt, path + ": not UTF-8 (byte " +
                                         std::to_string(differs - text->begin()) +
                                         "); convert it, for example with iconv");
}

Result<std::vector<TokenId>> read_ids(const std::string& path) {
  Result<json> value = read_json(path);
  if (!value.ok()) return value.status();
  const Status wrong(StatusCode::corrupt,
                     path + ": give a JSON array of token ids, like [504, 2365]");
  if (!value->is_array()) return wrong;
  std::vector<TokenId> ids;
  for (const json& item : *value) {
    if (!item.is_number_integer() || item.get<double>() < 0 || item.get<double>() > INT32_MAX) {
      return wrong;
    }
    ids.push_back(item.get<TokenId>());
  }
  return ids;
}

}  // namespace kvik::cli
