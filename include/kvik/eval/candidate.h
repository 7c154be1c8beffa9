// One way to store keys and values, to be compared with others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

  // "tcq4", or "tcq4:tcq3" where the sides differ; our names.
  KVIK_API std::string name() const;
};

// "K:V", one name for both sides, or a preset; each side a name of kv_names.h or of
// ggml_rounding.h. Errors: invalid_argument that lists the names.
KVIK_API Result<CandidateFormat> parse_candidate_format(std::string_view name);

// Ok if the model's head dims fit. Errors: invalid_argument that says which would.
KVIK_API Status check(const CandidateFormat& format, const ModelInfo& model);

// The candidate for this model. Errors: as check().
KVIK_API Result<Candidate> make_candidate(const Model& model, const CandidateFormat& format);

// Bytes of one token's keys and values over all layers of the model, those with a window included:
// what the caches would store, unless the candidate says otherwise. Errors: as
// Model::cache_options.
KVIK_API Result<int64_t> bytes_per_token(const Model& model, const Candidate& candidate);

}  // namespace kvik
