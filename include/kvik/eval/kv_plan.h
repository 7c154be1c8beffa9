// What caches of a model take of memory, from its header alone; and the same measured.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kvik/backend/backend.h"
#include "kvik/cache/size_prediction.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/model/model.h"

namespace kvik {

struct PlanParams {
  int context = 512;  // tokens that each user holds
  int num_users = 1;  // one sequence each, none sharing blocks with another
  int batch = 512;    // tokens of a step as a sequence fills; the last one may have fewer
  std::optional<int64_t> memory_bytes = std::nullopt;  // for caches; weights come on top
};

struct LayerBytes {
  int64_t k = 0;
  int64_t v = 0;
};

struct FormatPlan {
  // Of one token, by layer of the model; padding of head dims included, exact rows beside packed
  // ones not.
  std::vector<LayerBytes> layers;
  int64_t bytes_per_token = 0;          // over all layers
  int64_t growing_bytes_per_token = 0;  // of those that give nothing back: without a window
  // All users at the context, over the caches of all layer groups.
  int64_t num_tokens = 0;
  int64_t nbytes = 0;           // rows' share of the committed blocks
  int64_t committed_bytes = 0;  // asked of the system
  int64_t exact_bytes = 0;      // of committed_bytes: exact rows beside packed ones
  // Where memory_bytes is given. What num_users can hold each: a multiple of the block size,
  // nullopt where not even a block fits. kMaxPlannedTokens when nothing grows.
  std::optional<int64_t> longest_context = std::nullopt;
  // Users that can hold the context; 0 where none can.
  std::optional<int64_t> most_users = std::nullopt;
};

// Tokens of all users together that a plan may count; also where it stops looking for longer
// contexts and more users.
inline constexpr int64_t kMaxPlannedTokens = int64_t{1} << 28;

// Predicts caches made with these options, whose max_tokens, max_sequences and max_batch_tokens are
// set as `params` says. Reads no weights and takes no memory to speak of. Errors: invalid_argument
// for params below 1 or more than kMaxPlannedTokens in all; as Model::cache_options.
KVIK_API Result<FormatPlan> plan_cache(const Model& model, const ModelCacheOptions& options,
                                       const PlanParams& params);

struct MeasuredCache {
  int64_t num_tokens = 0;
  int64_t nbytes = 0;
  int64_t committed_bytes = 0;
  int64_t resident_bytes = 0;  // held by the system for them
};

// Makes those caches on `backend`, writes rows of every layer and user up to the context, and
// returns what the caches then say of themselves: committed_bytes equals the plan's.
// Errors: as plan_cache; out_of_memory where the prediction exceeds what the system can give; what
// the caches return.
KVIK_API Result<MeasuredCache> measure_cache(const Model& model, const ModelCacheOptions& options,
                                             const PlanParams& params,
                                             const std::shared_ptr<Backend>& backend);

}  // namespace kvik
