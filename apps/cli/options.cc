#include "options.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "cli.h"
#include "kvik/core/thread_team.h"
#include "kvik/model/stream_decoder.h"
#include "numbers.h"

namespace kvik::cli {

using nlohmann::json;

CLI::Option* add_output_option(CLI::App& command, std::string& output,
                               std::vector<std::string> choices) {
  output = choices.front();
  return command.add_option("-o,--output", output, "Form of the output")
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
  CLI::Option* const context = command.add_option(
      "-c,--ctx-size", options.context,
      default_context > 0 ? "Context in tokens; 0: as the model was trained"
                          : "Context in tokens; 0: as the model was trained; without it: that too, "
                            "or the most that fits in memory");
  context->transform(integer_in(0, 1 << 30));
  if (default_context > 0) context->capture_default_str();
  options.context_option = context;
  command.add_option("-b,--batch-size", options.batch, "Most tokens computed at once")
      ->transform(integer_in(1, 1 << 20))
      ->capture_default_str();
  command.add_option("-t,--threads", options.threads, "Threads")
      ->transform(integer_in(1, 1024))
      ->capture_default_str();
  add_kv_options(command, options.kv);
  options.layout_option =
      command.add_option("--kv-layout", options.layout, "How the cache lies in memory")
          ->check(CLI::IsMember({"paged", "contiguous"}))
          ->capture_default_str();
  options.block_size_option =
      command.add_option("--block-size", options.block_size, "Tokens of a block, a multiple of 16")
          ->transform(integer_in(16, 1 << 20))
          ->capture_default_str();
}

void add_overflow_option(CLI::App& command, EngineOptions& options) {
  options.overflow_option =
      command
          .add_option(
              "--overflow", options.overflow,
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
          ->transform(integer_in(0, 1 << 30))
          ->capture_default_str();
}

namespace {

// Shift moves keys that are stored in frames; nothing else of a cache can move.
Status check_shift(const EngineOptions& options) {
  if (options.overflow != "shift") {
    if (options.keep_option == nullptr || options.keep_option->count() == 0) return {};
    return invalid_argument(name_given(*options.keep_option) +
                            " has no meaning without --overflow shift");
  }
  const KvOptions& kv = options.kv;
  const std::string shift = name_given(*options.overflow_option) + " shift";
  const std::string needs = shift + " moves tq and tcq keys in calibrated frames; ";
  if (options.layout == "contiguous") {
    return invalid_argument(shift + " takes blocks out, which " +
                            name_given(*options.layout_option) +
                            " contiguous cannot; leave one out");
  }
  if (kv.is_auto) {
    return invalid_argument(needs + name_given(*kv.way_option) +
                            " auto may take others: name a type or a --kv-quality");
  }
  if (kv.quality.empty() && !is_rotated(kv.format().k)) {
    return invalid_argument(needs + std::string(kv_code_name(kv.format().k)) +
                            " keys cannot move: choose --kv tq8, tq4, tcq4 or the like");
  }
  if (kv.calibration == "off") {
    return invalid_argument(needs + "leave " +
                            (kv.calibration_option->count() > 0 ? name_given(*kv.calibration_option)
                                                                : "+nocalib of --kv") +
                            " off out");
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
    return invalid_argument(name_given(*options.block_size_option) + " " +
                            std::to_string(options.block_size) + ": give a multiple of 16");
  }
  if (options.layout == "contiguous" && options.block_size_option->count() > 0) {
    return invalid_argument(name_given(*options.block_size_option) + " has no meaning with " +
                            name_given(*options.layout_option) + " contiguous; leave it out");
  }
  if (options.layout == "contiguous" && options.overflow == "window") {
    return invalid_argument(
        name_given(*options.overflow_option) + " window gives blocks back, which " +
        name_given(*options.layout_option) + " contiguous cannot; leave one out");
  }
  return check_shift(options);
}

Status check_room(const EngineOptions& options, const Model& header, int context,
                  std::span<const TokenId> tokens) {
  const int vocab_size = header.info().vocab_size;
  for (const TokenId token : tokens) {
    if (token < 0 || token >= vocab_size) {
      return invalid_argument(
          format("token %d is outside the vocabulary of %d", token, vocab_size));
    }
  }
  if (options.overflow != "stop" || tokens.size() <= static_cast<size_t>(context)) return {};
  return invalid_argument(
      format("the text takes %zu tokens and the context holds %d; shorten it or ask for a larger "
             "context",
             tokens.size(), context));
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
