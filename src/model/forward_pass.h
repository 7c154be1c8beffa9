// What the layers of every architecture share during one pass.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "kvik/backend/backend.h"
#include "kvik/cache/cache_set.h"
#include "kvik/core/buffer.h"
#include "kvik/core/status.h"
#include "kvik/core/thread_team.h"
#include "kvik/model/matmul.h"
#include "kvik/model/model.h"
#include "kvik/model/model_runner.h"

namespace kvik::internal {

// Kinds of rope that the layers of one model turn by.
inline constexpr int kMaxRopes = 2;

struct RopeAngles {
  float* cos = nullptr;  // rope_dim / 2
  float* sin = nullptr;  // rope_dim / 2
};

// Rows of the largest batch, each array [max_tokens][its width], cache-line aligned.
struct Workspace {
  float* hidden = nullptr;     // embedding_dim: the residual stream
  float* normed = nullptr;     // embedding_dim
  float* delta = nullptr;      // embedding_dim: what a block adds to the residual stream
  float* q = nullptr;          // num_heads * head_dim_k
  float* k = nullptr;          // num_kv_heads * head_dim_k
  float* v = nullptr;          // num_kv_heads * head_dim_v
  float* attention = nullptr;  // num_heads * head_dim_v
  float* gate = nullptr;       // ffn_dim
  float* up = nullptr;         // ffn_dim
  std::array<RopeAngles, kMaxRopes> angles;
  Buffer memory;

  // Errors: out_of_memory.
  static Result<Workspace> create(const ModelInfo& info, int max_tokens);
};

// One step, reserved and not yet committed.
struct ForwardPass {
  const ModelInfo& info;
  std::span<const TokenId> tokens;  // new ones of all sequences, in the order of the plan
  CacheSet& caches;
  SetPlan& plan;
  std::span<const std::optional<int>> windows;  // what queries see, per cache of the set
  Backend& backend;
  MatMul& matmul;
  ThreadTeam& team;
  Workspace& workspace;
  const RowHook& on_rows;  // may be empty
  int64_t first_position;  // of RoPE

  int num_tokens() const { return static_cast<int>(tokens.size()); }
};

}  // namespace kvik::internal
