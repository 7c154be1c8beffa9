// One way to store keys and values, to be compared with others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/eval/ggml_rounding.h"
#include "kvik/format/kv_format.h"
#include "kvik/model/model.h"
#include "kvik/model/model_runner.h"

namespace kvik {

struct Candidate {
  std::string name;
  // How its caches are made. A comparison sets max_tokens and the like to what it needs.
  ModelCacheOptions cache;
  RowHook hook = {};  // for formats that exist for comparison only; empty: none
  // What a token of such a format takes over all layers; none: what the caches store.
  std::optional<int64_t> bytes_per_token = std::nullopt;
};

// Both sides of a candidate by name: a format of the caches, or one of llama.cpp's that rounds what
// an f32 cache then stores.
struct CandidateFormat {
  KvFormat format;  // f32 on the sides that are rounded
  std::optional<GgmlFormat> rounded_k = std::nullopt;
  std::optional<GgmlFormat> rounded_v = std::nullopt;
  // As KvProtection; layers below zero count from the last one.
  int exact_first = 0;
  int exact_recent = 0;
  std::vector<int> wide_layers = {};
  bool is_calibrated = true;  // where keys can be, and a calibration is given

  // "tcq4", or "tcq4:tcq3" where the sides differ, then what follows them; our names.
  KVIK_API std::string name() const;
};

// "K:V", one name for both sides, or a preset; each side a name of kv_names.h or of
// ggml_rounding.h. Then, in any order: "+first4" and "+recent64" for tokens that stay exact,
// "+skip0/-1" for layers that stay in f16, "+nocalib" for keys without their calibration. Errors:
// invalid_argument that lists the names.
KVIK_API Result<CandidateFormat> parse_candidate_format(std::string_view name);

// Ok if the model's head dims fit. Errors: invalid_argument that says which would.
KVIK_API Status check(const CandidateFormat& format, const ModelInfo& model);

// The candidate for this model. `calibration`: of the model's keys, or null. Errors: as check();
// invalid_argument for a layer that the model does not have.
KVIK_API Result<Candidate> make_candidate(
    const Model& model, const CandidateFormat& format,
    const std::shared_ptr<const KeyCalibration>& calibration = nullptr);

// Bytes of one token's keys and values over all layers of the model, those with a window included:
// what the caches would store, unless the candidate says otherwise. Errors: as
// Model::cache_options.
KVIK_API Result<int64_t> bytes_per_token(const Model& model, const Candidate& candidate);

}  // namespace kvik
