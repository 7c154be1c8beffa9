#include "kvik/eval/kv_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kvik/cache/cache_set.h"
#include "kvik/core/buffer.h"
#include "kvik/core/checked_math.h"

namespace kvik {
namespace {

// Tokens that one user's blocks hold: a block belongs to one user.
int64_t room_of(const PlanParams& params, int block_size) {
  return round_up(int64_t{params.context}, int64_t{block_size});
}

Status check(const PlanParams& params, int block_size) {
  if (params.context < 1 || params.num_users < 1 || params.batch < 1 || block_size < 1 ||
      (params.memory_bytes && *params.memory_bytes < 0)) {
    return invalid_argument(
        "context, users, batch and block size must be at least 1, memory at least 0");
  }
  if (room_of(params, block_size) * params.num_users > kMaxPlannedTokens) {
    return invalid_argument(std::to_string(params.num_users) + " users of " +
                            std::to_string(params.context) + " tokens are more than " +
                            std::to_string(kMaxPlannedTokens) + " tokens");
  }
  return {};
}

// Requires: check() is ok.
Result<std::vector<PagedCacheOptions>> caches_for(const Model& model, ModelCacheOptions options,
                                                  const PlanParams& params) {
  options.max_tokens = static_cast<int>(room_of(params, options.block_size) * params.num_users);
  options.max_sequences = params.num_users;
  options.max_batch_tokens = params.batch;
  return model.cache_options(options);
}

std::vector<AppendRun> runs_of(const PlanParams& params) {
  return {{params.context / params.batch, params.batch}, {1, params.context % params.batch}};
}

Result<CacheSize> predict(const Model& model, const ModelCacheOptions& options,
                          const PlanParams& params) {
  const Result<std::vector<PagedCacheOptions>> caches = caches_for(model, options, params);
  if (!caches.ok()) return caches.status();
  CacheSize sum;
  for (const PagedCacheOptions& cache : *caches) {
    const Result<CacheSize> size = predict_cache_size(cache, runs_of(params), params.num_users);
    if (!size.ok()) return size.status();
    sum.num_tokens = size->num_tokens;
    sum.nbytes += size->nbytes;
    sum.committed_bytes += size->committed_bytes;
    sum.exact_bytes += size->exact_bytes;
  }
  return sum;
}

// The largest n in 0 .. limit for which fits(n), given that it fits up to some n and not beyond.
template <class Fits>
Result<int64_t> largest(int64_t limit, const Fits& fits) {
  int64_t low = 0;
  while (low < limit) {
    const int64_t middle = low + (limit - low + 1) / 2;
    const Result<bool> holds = fits(middle);
    if (!holds.ok()) return holds.status();
    if (*holds) {
      low = middle;
    } else {
      limit = middle - 1;
    }
  }
  return low;
}

Result<bool> fits(const Model& model, const ModelCacheOptions& options, const PlanParams& params) {
  const Result<CacheSize> size = predict(model, options, params);
  if (!size.ok()) return size.status();
  return size->committed_bytes <= *params.memory_bytes;
}

// Tokens of one user beyond which rows alone exceed the memory.
int64_t most_tokens(const FormatPlan& plan, const PlanParams& params) {
  const int64_t most = kMaxPlannedTokens / params.num_users;
  if (plan.growing_bytes_per_token == 0) return most;
  return std::min(most, *params.memory_bytes / plan.growing_bytes_per_token / params.num_users);
}

Status search(const Model& model, const ModelCacheOptions& options, const PlanParams& params,
              FormatPlan& plan) {
  const int64_t block = options.block_size;
  const Result<int64_t> blocks = largest(most_tokens(plan, params) / block, [&](int64_t count) {
    PlanParams tried = params;
    tried.context = static_cast<int>(count * block);
    return fits(model, options, tried);
  });
  if (!blocks.ok()) return blocks.status();
  if (*blocks > 0) plan.longest_context = *blocks * block;

  int64_t limit = kMaxPlannedTokens / room_of(params, options.block_size);
  const int64_t growing = plan.growing_bytes_per_token * params.context;
  if (growing > 0) limit = std::min(limit, *params.memory_bytes / growing);
  const Result<int64_t> users = largest(limit, [&](int64_t count) {
    PlanParams tried = params;
    tried.num_users = static_cast<int>(count);
    return fits(model, options, tried);
  });
  if (!users.ok()) return users.status();
  plan.most_users = *users;
  return {};
}

// One step of a sequence: rows for all layers. `rows` holds enough numbers for any of them.
Status append(CacheSet& caches, const std::vector<PagedCacheOptions>& options, Sequence& sequence,
              int num_tokens, const std::vector<float>& rows) {
  const AppendRequest request{&sequence, num_tokens};
  Result<SetPlan> plan = caches.reserve({&request, 1});
  if (!plan.ok()) return plan.status();
  for (int i = 0; i < caches.num_caches(); ++i) {
    const KvSpec& spec = options[static_cast<size_t>(i)].spec;
    const ConstTensorView k(rows.data(), DType::f32,
                            {num_tokens, spec.num_kv_heads, spec.head_dim_k});
    const ConstTensorView v(rows.data(), DType::f32,
                            {num_tokens, spec.num_kv_heads, spec.head_dim_v});
    for (int layer = 0; layer < spec.num_layers(); ++layer) {
      caches.write(*plan, i, layer, k, v);
    }
  }
  return caches.commit(std::move(plan).value());
}

// Numbers that any format takes, none of them special.
std::vector<float> arbitrary_rows(int64_t count) {
  std::vector<float> rows(static_cast<size_t>(count));
  uint32_t state = 1;
  for (float& value : rows) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(static_cast<int32_t>(state >> 8) - (1 << 23)) * 0x1p-23F;
  }
  return rows;
}

}  // namespace

Result<FormatPlan> plan_cache(const Model& model, const ModelCacheOptions& options,
                              const PlanParams& params) {
  if (Status status = check(params, options.block_size); !status.ok()) return status;
  const Result<std::vector<PagedCacheOptions>> caches = caches_for(model, options, params);
  if (!caches.ok()) return caches.status();
  FormatPlan plan;
  plan.layers.resize(static_cast<size_t>(model.info().num_layers));
  for (size_t i = 0; i < caches->size(); ++i) {
    const KvSpec& spec = (*caches)[i].spec;
    for (int layer = 0; layer < spec.num_layers(); ++layer) {
      const int of_model = model.info().groups[i].layers[static_cast<size_t>(layer)];
      plan.layers[static_cast<size_t>(of_model)] = {token_bytes_k(spec, layer),
                                                    token_bytes_v(spec, layer)};
    }
    plan.bytes_per_token += token_bytes(spec);
    if (!(*caches)[i].window) plan.growing_bytes_per_token += token_bytes(spec);
  }
  const Result<CacheSize> size = predict(model, options, params);
  if (!size.ok()) return size.status();
  plan.num_tokens = size->num_tokens;
  plan.nbytes = size->nbytes;
  plan.committed_bytes = size->committed_bytes;
  plan.exact_bytes = size->exact_bytes;
  if (params.memory_bytes) {
    if (Status status = search(model, options, params, plan); !status.ok()) return status;
  }
  return plan;
}

Result<MeasuredCache> measure_cache(const Model& model, const ModelCacheOptions& options,
                                    const PlanParams& params,
                                    const std::shared_ptr<Backend>& backend) {
  if (Status status = check(params, options.block_size); !status.ok()) return status;
  const Result<CacheSize> predicted = predict(model, options, params);
  if (!predicted.ok()) return predicted.status();
  if (const int64_t available = available_memory_bytes(); predicted->committed_bytes > available) {
    return Status(StatusCode::out_of_memory,
                  "the caches would take " + std::to_string(predicted->committed_bytes) +
                      " bytes and " + std::to_string(available) +
                      " are available; measure a shorter context, or plan without measuring");
  }
  const Result<std::vector<PagedCacheOptions>> cache_options = caches_for(model, options, params);
  if (!cache_options.ok()) return cache_options.status();
  Result<CacheSet> caches = CacheSet::create(*cache_options, backend);
  if (!caches.ok()) return caches.status();
  const ModelInfo& info = model.info();
  const int step = std::min(params.batch, params.context);
  const std::vector<float> rows = arbitrary_rows(int64_t{step} * info.num_kv_heads *
                                                 std::max(info.head_dim_k, info.head_dim_v));
  std::vector<Sequence> sequences;
  for (int user = 0; user < params.num_users; ++user) {
    sequences.push_back(caches->new_sequence());
    for (const AppendRun& run : runs_of(params)) {
      if (run.num_tokens == 0) continue;
      for (int i = 0; i < run.num_steps; ++i) {
        Status status = append(*caches, *cache_options, sequences.back(), run.num_tokens, rows);
        if (!status.ok()) return status;
      }
    }
  }
  MeasuredCache measured;
  measured.num_tokens = int64_t{params.context} * params.num_users;
  for (int i = 0; i < caches->num_caches(); ++i) {
    const CacheStats stats = caches->stats(i);
    measured.nbytes += stats.nbytes;
    measured.committed_bytes += stats.committed_bytes;
    measured.resident_bytes += stats.resident_bytes;
  }
  return measured;
}

}  // namespace kvik
