// How a command stores the cache: types, what is kept wider, the calibration of keys, and the
// choice by memory.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/engine/session.h"
#include "kvik/model/model_runner.h"

namespace kvik::cli {

struct KvOptions {
  std::string type_k = "f16", type_v = "f16";
  std::string quality;   // a preset, or empty
  bool is_auto = false;  // --kv auto: chosen in resolve()
  uint64_t memory = 0;   // bytes for it; 0: what the system has
  int first = 0;
  int recent = 0;
  std::vector<int> skip_layers;  // negative: from the last one
  std::string calibration = "auto";
  int frame = 128;

  const CLI::Option *first_option = nullptr, *calibration_option = nullptr, *frame_option = nullptr,
                    *memory_option = nullptr;

  KvFormat format() const;
  KvProtection protection(const ModelInfo& info) const;
};

// -ctk, -ctv, --kv, --kv-quality, --mem, --kv-first, --kv-recent, --kv-skip-layers, --kv-calib,
// --kv-frame.
void add_kv_options(CLI::App& command, KvOptions& options);
// The last two of them alone.
void add_calibration_options(CLI::App& command, KvOptions& options);
// A usage error, or ok.
Status check(const KvOptions& options);

// Settles what depends on the model: a preset, the choice by memory (said on stderr with its
// reason), layers counted from the last. `cache` says all but the format.
Status resolve(KvOptions& options, const Model& model, ModelCacheOptions cache);

// Where calibrations are kept: $KVIK_CACHE_DIR, else $XDG_CACHE_HOME/kvik, else ~/.cache/kvik.
std::string calibration_path(const std::string& folder, uint64_t fingerprint, int frame);
std::string cache_folder();

// The calibration that the keys of these formats want, or null: from the file named, or from the
// cache folder, where it is put when it is not there yet, which is said on stderr.
Result<std::shared_ptr<const KeyCalibration>> key_calibration(const KvOptions& options,
                                                              ModelRunner& runner);
// Measures, with progress on stderr. Empty `texts`: those that come with Kvik.
Result<KeyCalibration> calibrate(ModelRunner& runner, std::vector<std::vector<TokenId>> texts,
                                 int frame);

}  // namespace kvik::cli
