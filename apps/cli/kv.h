// How a command stores the cache: types, what is kept wider, the calibration of keys, and the
// choice by memory.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/engine/key_calibration.h"
#include "kvik/engine/session.h"
#include "kvik/eval/candidate.h"
#include "kvik/model/model_runner.h"

namespace kvik::cli {

// What is kept wider beside packed rows, and the calibration of keys.
struct KvExtras {
  int first = 0;
  int recent = 0;
  std::vector<int> skip_layers;  // negative: from the last one
  std::string calibration = "auto";
  int frame = 128;

  const CLI::Option *first_option = nullptr, *recent_option = nullptr, *skip_option = nullptr,
                    *calibration_option = nullptr, *frame_option = nullptr;
};

// One way to store a cache.
struct KvOptions : KvExtras {
  std::string type_k = "f16", type_v = "f16";
  std::string quality;      // a preset, or empty
  bool is_auto = false;     // --kv auto: chosen in resolve()
  uint64_t memory = 0;      // bytes for it; 0: what the system has
  CandidateFormat endings;  // what the name of --kv said beside the types

  const CLI::Option *memory_option = nullptr, *way_option = nullptr;

  KvFormat format() const;
  KvProtection protection(const ModelInfo& info) const;
  // As eval names it, like "tcq4:tcq3+first4". Settled options only.
  std::string name() const;
};

// Several ways, for commands that compare them: one for each type named.
struct KvListOptions : KvExtras {
  std::vector<std::string> types_k{"f16"}, types_v{"f16"};
  std::vector<std::string> ways;  // of --kv
  std::string quality;
  CLI::Option *k_option = nullptr, *v_option = nullptr, *way_option = nullptr;
};

// -ctk, -ctv, --kv, --kv-quality, --kv-quant, --kv-first, --kv-recent, --kv-skip-layers,
// --kv-calib, --kv-frame; of one way also --mem, for --kv auto.
void add_kv_options(CLI::App& command, KvOptions& options);
void add_kv_options(CLI::App& command, KvListOptions& options);
// The last two of them alone.
void add_calibration_options(CLI::App& command, KvExtras& options);
// A usage error, or ok.
Status check(const KvOptions& options);

// The ways that the options name, `otherwise` if they name none. --kv-first and the like count for
// those of them that are packed, --kv-calib for tq and tcq keys. Errors: as check(); options that
// count for none of them.
Result<std::vector<KvOptions>> ways_of(const KvListOptions& options,
                                       const std::vector<KvFormat>& otherwise);

// Bytes that a cache may take: --mem, or what the system has.
int64_t memory_for_cache(const KvOptions& options);
// The most tokens, cache.max_tokens at most, that `bytes` hold in the way of the options, settled
// or not. Errors: as Model::cache_bytes.
Result<int> largest_context(const KvOptions& options, const Model& model, ModelCacheOptions cache,
                            int64_t bytes);

// Settles what depends on the model: a preset, the choice by memory (said on stderr with its
// reason), layers counted from the last. `cache` says all but the format.
Status resolve(KvOptions& options, const Model& model, ModelCacheOptions cache);
// The same for each of ways_of(). Errors: also head dims of the model that a way does not take.
Status resolve(std::vector<KvOptions>& ways, const Model& model);
// What the ways keep beside packed rows, a line for each kind; empty if nothing.
std::string counted_text(const std::vector<KvOptions>& ways, const ModelInfo& info);

// For commands that compute nothing: a file named by --kv-calib must be of this model and have the
// frames asked for. Errors: as key_calibration().
Status check_calibration(const KvExtras& options, const Model& model);

// Where calibrations are kept: $KVIK_CACHE_DIR, else $XDG_CACHE_HOME/kvik, else ~/.cache/kvik.
std::string calibration_path(const std::string& folder, const ModelFingerprint& fingerprint,
                             int frame);
std::string cache_folder();
// Makes the folder of a file in it. Errors: io_error naming the folder and the reason.
Status make_folder_of(const std::string& path);

// The calibration that the keys of these formats want, or null: from the file named, or from the
// cache folder, where it is put when it is not there yet, which is said on stderr.
Result<std::shared_ptr<const KeyCalibration>> key_calibration(const KvOptions& options,
                                                              ModelRunner& runner);
// Measures, with progress on stderr. Empty `texts`: those that come with Kvik.
Result<KeyCalibration> calibrate(ModelRunner& runner, std::vector<std::vector<TokenId>> texts,
                                 int frame);

}  // namespace kvik::cli
