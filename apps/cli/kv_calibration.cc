// Where calibrations of keys come from and are kept.
#include <cstdlib>
#include <filesystem>

#include "cli.h"
#include "kv.h"
#include "kvik/engine/key_calibration.h"

namespace kvik::cli {

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

Status make_folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return {};
  return {StatusCode::io_error,
          folder.string() + ": cannot make the folder (" + error.message() + ")"};
}

std::string calibration_path(const std::string& folder, const ModelFingerprint& fingerprint,
                             int frame) {
  return folder + "/calibration/" + to_string(fingerprint) + "-" + std::to_string(frame) + ".kvcal";
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

namespace {

// The file that --kv-calib names.
Result<KeyCalibration> read_calibration(const KvExtras& options, const Model& model) {
  Result<KeyCalibration> read = load_calibration(model, options.calibration);
  if (read.ok() && options.frame_option->count() > 0 && read->frame != options.frame) {
    return invalid_argument(format("%s has frames of %d tokens, not of --kv-frame %d",
                                   options.calibration.c_str(), read->frame, options.frame));
  }
  return read;
}

}  // namespace

Status check_calibration(const KvExtras& options, const Model& model) {
  if (options.calibration == "auto" || options.calibration == "off") return {};
  return read_calibration(options, model).status();
}

Result<std::shared_ptr<const KeyCalibration>> key_calibration(const KvOptions& options,
                                                              ModelRunner& runner) {
  using Shared = std::shared_ptr<const KeyCalibration>;
  if (!is_rotated(options.format().k) || options.calibration == "off") return Shared();
  const auto shared = [](Result<KeyCalibration> made) -> Result<Shared> {
    if (!made.ok()) return made.status();
    return std::make_shared<const KeyCalibration>(std::move(made).value());
  };
  if (options.calibration != "auto") return shared(read_calibration(options, runner.model()));
  const Result<ModelFingerprint> fingerprint = model_fingerprint(runner.model());
  if (!fingerprint.ok()) return fingerprint.status();
  const std::string path = calibration_path(cache_folder(), *fingerprint, options.frame);
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    Result<KeyCalibration> read = load_calibration(runner.model(), path, *fingerprint);
    if (read.ok()) return shared(std::move(read));
    warn(read.status().message() + "; it is made anew");
  }
  note("calibrating the keys of this model, once (--kv-calib off does without)");
  Result<KeyCalibration> made = calibrate(runner, {}, options.frame);
  if (!made.ok()) return made.status();
  Status saved = make_folder_of(path);
  if (saved.ok()) saved = save_calibration(*made, runner.model(), path);
  if (saved.ok()) {
    note("calibration kept in " + path);
  } else {
    warn("the calibration is not kept: " + saved.message());
  }
  return shared(std::move(made));
}

}  // namespace kvik::cli
