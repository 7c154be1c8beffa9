// Options that several commands share, and what they mean.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
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

// What -ctk and the like become before parsing: llama.cpp's options of one dash and several
// letters, which CLI11 would read as a bundle. Values of the options before them stay.
std::vector<std::string> with_long_names(std::vector<std::string> arguments);

// Gives every option that has a long name the variable KVIK_NAME_OF_THE_OPTION.
void name_environment(CLI::App& app);

// -o with the choices; the first is the default.
void add_output_option(CLI::App& command, std::string& output, std::vector<std::string> choices);

void add_model_option(CLI::App& command, std::string& path);

// -c, -b, -t, those of kv.h, --kv-layout, --block-size.
struct EngineOptions {
  std::string model;
  int context = 0;  // 0: as the model was trained
  int batch = 512;
  int threads = 0;  // filled with the number of usable processors
  KvOptions kv;
  std::string layout = "paged";
  std::string overflow = "stop";
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
// Settles options.kv.
Result<Engine> make_engine(EngineOptions& options);
// Without looking at the weights: for commands that compute nothing.
Result<std::shared_ptr<const Model>> load_header(const std::string& path);

// The text of a file ("-": standard input). Errors: io_error; corrupt naming the first byte that is
// not UTF-8.
Result<std::string> read_text(const std::string& path);
// A JSON array of token ids.
Result<std::vector<TokenId>> read_ids(const std::string& path);

}  // namespace kvik::cli
