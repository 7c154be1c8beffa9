// Options that several commands share, and what they mean.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv.h"
#include "kvik/core/status.h"
#include "kvik/engine/session.h"
#include "kvik/format/kv_format.h"
#include "kvik/model/model.h"
#include "kvik/model/model_runner.h"
#include "kvik/model/tokenizer.h"

namespace kvik::cli {

// -o with the choices; the first is the default.
CLI::Option* add_output_option(CLI::App& command, std::string& output,
                               std::vector<std::string> choices);

void add_model_option(CLI::App& command, std::string& path);

// -c, -b, -t, those of kv.h, --kv-layout, --block-size.
struct EngineOptions {
  std::string model;
  int context = 0;  // 0: as the model was trained
  const CLI::Option* context_option = nullptr;
  int batch = 512;
  int threads = 0;  // filled with the number of usable processors
  KvOptions kv;
  std::string layout = "paged";
  std::string overflow = "stop";
  const CLI::Option *layout_option = nullptr, *overflow_option = nullptr;
  int keep = 0;  // of --overflow shift
  const CLI::Option* keep_option = nullptr;
  int block_size = 16;
  const CLI::Option* block_size_option = nullptr;
};
void add_engine_options(CLI::App& command, EngineOptions& options, int default_context = 0);
// --overflow and --keep, for commands whose text may be longer than the context.
void add_overflow_option(CLI::App& command, EngineOptions& options);
// A usage error, or ok.
Status check(const EngineOptions& options);

// The model loaded and a session on it.
struct Engine {
  std::shared_ptr<const Model> model;
  std::shared_ptr<ModelRunner> runner;
  std::unique_ptr<Session> session;
};
// What a command asks of a model before its weights are looked at: `context` in tokens.
using HeaderCheck = std::function<Status(const Model& header, int context)>;
// Settles options.kv. All that can be refused by the header alone is refused before weights are
// read, and all but the calibration itself before keys are calibrated.
Result<Engine> make_engine(EngineOptions& options, const HeaderCheck& check_header = {});
// Ok if a session with these options takes a text of these tokens.
Status check_room(const EngineOptions& options, const Model& header, int context,
                  std::span<const TokenId> tokens);
// Without looking at the weights: for commands that compute nothing.
Result<std::shared_ptr<const Model>> load_header(const std::string& path);

// The text of a file ("-": standard input). Errors: io_error; corrupt naming the first byte that is
// not UTF-8.
Result<std::string> read_text(const std::string& path);
// A JSON array of token ids.
Result<std::vector<TokenId>> read_ids(const std::string& path);

}  // namespace kvik::cli
