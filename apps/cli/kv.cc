#include "kv.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <tuple>

#include "cli.h"
#include "kvik/core/buffer.h"
#include "kvik/engine/key_calibration.h"
#include "options.h"

namespace kvik::cli {
namespace {

// Classes that --kv-quality names and --kv auto walks through, widest first. All but the first keep
// kExactFirst tokens exact.
struct KvClass {
  const char* name;
  KvFormat format;
};
constexpr std::array<KvClass, 7> kClasses = {{{"f16", {KvCode::f16, KvCode::f16}},
                                              {"tq8", {KvCode::tq8, KvCode::tq8}},
                                              {"safe", {KvCode::tq8, KvCode::tcq4}},
                                              {"balanced", {KvCode::tcq4, KvCode::tcq4}},
                                              {"small", {KvCode::tcq4, KvCode::tcq3}},
                                              {"tiny", {KvCode::tcq3, KvCode::tcq3}},
                                              {"smallest", {KvCode::tcq2, KvCode::tcq2}}}};
constexpr int kExactFirst = 4;

std::string name_of(KvFormat format) {
  return std::string(kv_code_name(format.k)) + ":" + std::string(kv_code_name(format.v));
}

// Takes a class; exact first tokens where the user named no number.
void take(KvOptions& options, const KvClass& chosen) {
  options.type_k = kv_code_name(chosen.format.k);
  options.type_v = kv_code_name(chosen.format.v);
  if (is_packed(chosen.format.k) && options.first_option->count() == 0) {
    options.first = kExactFirst;
  }
}

Status choose_by_memory(KvOptions& options, const Model& model, ModelCacheOptions cache) {
  const int64_t limit = options.memory > 0
                            ? static_cast<int64_t>(std::min<uint64_t>(options.memory, INT64_MAX))
                            : available_memory_bytes();
  int64_t bytes = 0;
  std::string passed;
  for (const KvClass& each : kClasses) {
    if (!check_keys(each.format.k, model.info().head_dim_k).ok() ||
        !check_values(each.format.v, model.info().head_dim_v).ok()) {
      continue;
    }
    KvOptions tried = options;
    take(tried, each);
    cache.format = each.format;
    cache.protection = tried.protection(model.info());
    Result<int64_t> needed = model.cache_bytes(cache);
    if (!needed.ok()) return needed.status();
    bytes = *needed;
    if (bytes > limit) {
      passed += format("%s%s %s", passed.empty() ? "" : ", ", name_of(each.format).c_str(),
                       bytes_text(bytes).c_str());
      continue;
    }
    take(options, each);
    std::string why =
        format("--kv auto: %s takes %s of %s for %d tokens", name_of(each.format).c_str(),
               bytes_text(bytes).c_str(), bytes_text(limit).c_str(), cache.max_tokens);
    if (options.first > 0) why += format(", the first %d exact", options.first);
    if (!passed.empty()) why += "; wider ones do not fit (" + passed + ")";
    note(why);
    return {};
  }
  return {StatusCode::out_of_memory,
          format("--kv auto: no format holds %d tokens in %s (%s); ask for a shorter context or "
                 "more memory",
                 cache.max_tokens, bytes_text(limit).c_str(), passed.c_str())};
}

}  // namespace

KvFormat KvOptions::format() const { return kv_format(type_k, type_v); }

KvProtection KvOptions::protection(const ModelInfo& info) const {
  KvProtection protection;
  for (const int layer : skip_layers) {
    protection.wide_layers.push_back(layer < 0 ? layer + info.num_layers : layer);
  }
  protection.exact_first = first;
  protection.exact_recent = recent;
  return protection;
}

void add_kv_options(CLI::App& command, KvOptions& options) {
  add_kv_type_options(command, options.type_k, options.type_v, &options.is_auto);
  command
      .add_option("--kv-quality", options.quality,
                  "Types by what they cost: safe (tq8:tcq4), balanced (tcq4:tcq4), small "
                  "(tcq4:tcq3) or tiny (tcq3:tcq3), each with the first 4 tokens exact")
      ->check(CLI::IsMember({"safe", "balanced", "small", "tiny"}))
      ->excludes(command.get_option("--kv"), command.get_option("--cache-type-k"),
                 command.get_option("--cache-type-v"));
  options.memory_option =
      command
          .add_option("--mem", options.memory,
                      "Memory for the cache that --kv auto may take, like 512MiB; the widest "
                      "types that fit -c are chosen")
          ->transform(CLI::AsSizeValue(false))
          ->type_name("BYTES");
  options.first_option = command
                             .add_option("--kv-first", options.first,
                                         "Keep the first N tokens in f16 beside packed ones")
                             ->check(CLI::Range(0, 1 << 20))
                             ->capture_default_str();
  command
      .add_option("--kv-recent", options.recent,
                  "Let each token read the newest N tokens in f16, itself among them")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--kv-skip-layers", options.skip_layers,
                  "Layers that stay in f16, like 0,1,-1; negative: from the last")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("LAYERS");
  add_calibration_options(command, options);
}

void add_calibration_options(CLI::App& command, KvOptions& options) {
  options.calibration_option =
      command
          .add_option("--kv-calib", options.calibration,
                      "Calibration of tq and tcq keys: auto (made once per model), off, or a file "
                      "of kvik calibrate")
          ->type_name("auto|off|FILE")
          ->capture_default_str();
  options.frame_option = command
                             .add_option("--kv-frame", options.frame,
                                         "Tokens that share a calibrated frame: 128, 256 or 512")
                             ->check(CLI::IsMember({128, 256, 512}))
                             ->capture_default_str();
}

Status check(const KvOptions& options) {
  if (options.memory_option->count() > 0 && !options.is_auto) {
    return invalid_argument("--mem has no meaning without --kv auto");
  }
  if (options.is_auto || !options.quality.empty()) return {};
  const KvFormat format = options.format();
  const bool is_any_packed = is_packed(format.k) || is_packed(format.v);
  if (!is_any_packed && (options.first > 0 || options.recent > 0 || !options.skip_layers.empty())) {
    return invalid_argument(
        "--kv-first, --kv-recent and --kv-skip-layers keep rows wider than packed ones; with " +
        name_of(format) + " they change nothing");
  }
  if (!is_rotated(format.k) &&
      (options.frame_option->count() > 0 ||
       (options.calibration_option->count() > 0 && options.calibration != "off"))) {
    return invalid_argument("--kv-calib and --kv-frame concern tq and tcq keys; " +
                            std::string(kv_code_name(format.k)) + " keys have no calibration");
  }
  if (options.calibration == "off" && options.frame_option->count() > 0) {
    return invalid_argument("--kv-frame has no meaning with --kv-calib off");
  }
  return {};
}

Status resolve(KvOptions& options, const Model& model, ModelCacheOptions cache) {
  const int num_layers = model.info().num_layers;
  for (const int layer : options.skip_layers) {
    if (layer < -num_layers || layer >= num_layers) {
      return invalid_argument(
          format("--kv-skip-layers %d: the model has layers 0 to %d", layer, num_layers - 1));
    }
  }
  for (const KvClass& each : kClasses) {
    if (options.quality == each.name) take(options, each);
  }
  if (!options.is_auto) return {};
  return choose_by_memory(options, model, std::move(cache));
}

std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string folder = variable("KVIK_CACHE_DIR"); !folder.empty()) return folder;
  if (const std::string base = variable("XDG_CACHE_HOME"); !base.empty()) return base + "/kvik";
  const std::string home = variable("HOME");
  return (home.empty() ? "." : home) + "/.cache/kvik";
}

std::string calibration_path(const std::string& folder, uint64_t fingerprint, int frame) {
  return folder + format("/calibration/%016llx-%d.kvcal",
                         static_cast<unsigned long long>(fingerprint), frame);
}

Result<KeyCalibration> calibrate(ModelRunner& runner, std::vector<std::vector<TokenId>> texts,
                                 int frame) {
  if (texts.empty()) {
    Result<std::vector<std::vector<TokenId>>> own = calibration_texts(runner.model());
    if (!own.ok()) return own.status();
    texts = std::move(own).value();
  }
  Progress progress;
  CalibrationParams params;
  params.frame = frame;
  params.on_progress = [&](int done, int num_tokens) {
    progress.show(format("calibrating: %d of %d tokens", done, num_tokens));
    return !Interrupt::flag().load();
  };
  return calibrate_keys(runner, texts, params);
}

Result<std::shared_ptr<const KeyCalibration>> key_calibration(const KvOptions& options,
                                                              ModelRunner& runner) {
  using Shared = std::shared_ptr<const KeyCalibration>;
  if (!is_rotated(options.format().k) || options.calibration == "off") return Shared();
  const auto shared = [](Result<KeyCalibration> made) -> Result<Shared> {
    if (!made.ok()) return made.status();
    return std::make_shared<const KeyCalibration>(std::move(made).value());
  };
  if (options.calibration != "auto") {
    Result<KeyCalibration> read = load_calibration(runner.model(), options.calibration);
    if (read.ok() && options.frame_option->count() > 0 && read->frame != options.frame) {
      return invalid_argument(format("%s has frames of %d tokens, not of --kv-frame %d",
                                     options.calibration.c_str(), read->frame, options.frame));
    }
    return shared(std::move(read));
  }
  Result<uint64_t> fingerprint = model_fingerprint(runner.model());
  if (!fingerprint.ok()) return fingerprint.status();
  const std::string path = calibration_path(cache_folder(), *fingerprint, options.frame);
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    Result<KeyCalibration> read = load_calibration(runner.model(), path);
    if (read.ok()) return shared(std::move(read));
    warn(read.status().message() + "; it is made anew");
  }
  note("calibrating the keys of this model, once (--kv-calib off does without)");
  Result<KeyCalibration> made = calibrate(runner, {}, options.frame);
  if (!made.ok()) return made.status();
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (const Status saved = save_calibration(*made, runner.model(), path); saved.ok()) {
    note("calibration kept in " + path);
  } else {
    warn("the calibration is not kept: " + saved.message());
  }
  return shared(std::move(made));
}

}  // namespace kvik::cli
