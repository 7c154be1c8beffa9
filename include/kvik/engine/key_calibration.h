// Centres and diagonals for keys in frames (key_frame.h), measured on a model; and the file that
// keeps them.
//
// Per layer and KV head, in frame coordinates, positions 0 to 3 left out: mu is the mean of the
// keys, C_k,i their variance about mu and C_q,i the mean square of the queries that read the head,
// each counted once for every frame that it sees and for frames 512, 2048, 8192 and 16384 tokens
// before its text. Then a_i = ((C_q,i + e_q) / (C_k,i + e_k))^(1/4), e being 1e-4 of the mean over
// dims, scaled so that sum a_i^2 C_k,i = sum C_k,i. This diagonal minimises the error of scores
// among all diagonals for errors that are white after the rotation. mu and a are rounded to f16.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/format/key_frame.h"
#include "kvik/model/model_runner.h"

namespace kvik {

struct CalibrationParams {
  int frame = 128;  // tokens: 128, 256 or 512
  // Called after each pass; false stops with the error `cancelled`. Must not throw.
  std::function<bool(int tokens_done, int num_tokens)> on_progress = {};
};

// Runs the texts through the model, each by itself from position 0 with an f32 cache, and measures.
// The layers of the result are those of the model. The same model, texts, batch size and
// instruction set give the same bits. Takes the runner's row hook; none is set afterwards. Errors:
// invalid_argument for a frame that is none, an empty text or fewer than 8 tokens in all; as
// ModelRunner::forward.
KVIK_API Result<KeyCalibration> calibrate_keys(ModelRunner& runner,
                                               std::span<const std::vector<TokenId>> texts,
                                               const CalibrationParams& params = {});

// The texts that come with Kvik (half prose, half code, about 2,000 tokens) as the model's tokens.
KVIK_API Result<std::vector<std::vector<TokenId>>> calibration_texts(const Model& model);

// 128 bits in the order in which their digits are written.
using ModelFingerprint = std::array<std::byte, 16>;

// Names the model that a calibration belongs to: a hash of Model::settings(), of what its tokenizer
// makes of the texts above, and of every tensor's name, type, shape and bytes (all of which it
// reads). The order of the tensors and their cut into files do not count.
KVIK_API Result<ModelFingerprint> model_fingerprint(const Model& model);
// 32 digits of base 16, in lower case.
KVIK_API std::string to_string(const ModelFingerprint& fingerprint);

// docs/calibration-file.md draws the file. Written beside its name and renamed, so that a reader
// never sees half of one. Errors: io_error naming the path.
KVIK_API Status save_calibration(const KeyCalibration& calibration, const Model& model,
                                 const std::string& path);
// Errors: io_error when it cannot be read, corrupt when it is none or damaged, invalid_argument
// when it was made for another model. `known`: what model_fingerprint() gave for this model, where
// the caller has it; its weights are then not read once more.
KVIK_API Result<KeyCalibration> load_calibration(
    const Model& model, const std::string& path,
    const std::optional<ModelFingerprint>& known = std::nullopt);

}  // namespace kvik
