#include "model/forward_pass.h"

#include <array>
#include <utility>

#include "kvik/core/checked_math.h"

namespace kvik::internal {

Result<Workspace> Workspace::create(const ModelInfo& info, int max_tokens) {
  constexpr int64_t kLineFloats = 16;
  static_assert(kMaxRopes == 2);
  Workspace w;
  const int64_t embedding = info.embedding_dim;
  const int64_t ffn = info.ffn_dim;
  const int64_t pairs = info.rope_dim / 2;
  const std::array<std::pair<float**, int64_t>, 13> arrays = {{
      {&w.hidden, embedding},
      {&w.normed, embedding},
      {&w.delta, embedding},
      {&w.q, int64_t{info.num_heads} * info.head_dim_k},
      {&w.k, int64_t{info.num_kv_heads} * info.head_dim_k},
      {&w.v, int64_t{info.num_kv_heads} * info.head_dim_v},
      {&w.attention, int64_t{info.num_heads} * info.head_dim_v},
      {&w.gate, ffn},
      {&w.up, ffn},
      {&w.angles[0].cos, pairs},
      {&w.angles[0].sin, pairs},
      {&w.angles[1].cos, pairs},
      {&w.angles[1].sin, pairs},
  }};
  // Widths stay below 2^24 and max_tokens below 2^31: no product overflows.
  int64_t floats = 0;
  for (const auto& [pointer, width] : arrays) floats += round_up(width * max_tokens, kLineFloats);
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  Result<Buffer> memory = Buffer::reserve(bytes);
  if (!memory.ok()) return memory.status();
  if (Status status = memory->commit(bytes); !status.ok()) return status;
  w.memory = std::move(memory).value();
  auto* next = reinterpret_cast<float*>(w.memory.data());
  for (const auto& [pointer, width] : arrays) {
    *pointer = next;
    next += round_up(width * max_tokens, kLineFloats);
  }
  return w;
}

}  // namespace kvik::internal
