// Rows that say whose they are: the naive picture of a cache that tests compare with.
#pragma once

#include <cstdint>
#include <vector>

#include "kvik/cache/paged_cache.h"
#include "kvik/format/tile.h"

namespace kvik::test {

// The value of dim d of the row of token `id`: an integer below 251, exact in every plain format.
inline float model_value(int64_t id, int layer, int head, int d, bool is_key) {
  return static_cast<float>((id * 7 + layer * 5 + head * 11 + d * 3 + (is_key ? 0 : 127)) % 251);
}

// Rows [ids.size()][num_kv_heads][head_dim] of one layer.
inline std::vector<float> model_rows(const std::vector<int64_t>& ids, const KvSpec& spec, int layer,
                                     bool is_key) {
  std::vector<float> rows;
  for (const int64_t id : ids) {
    for (int head = 0; head < spec.num_kv_heads; ++head) {
      for (int d = 0; d < (is_key ? spec.head_dim_k : spec.head_dim_v); ++d) {
        rows.push_back(model_value(id, layer, head, d, is_key));
      }
    }
  }
  return rows;
}

// Writes the rows of `ids` (all new tokens of the plan, in order) into one layer.
template <class Cache>
void write_model_rows(Cache& cache, AppendPlan& plan, int layer, const std::vector<int64_t>& ids) {
  const KvSpec& spec = cache.spec();
  const std::vector<float> k = model_rows(ids, spec, layer, true);
  const std::vector<float> v = model_rows(ids, spec, layer, false);
  const auto n = static_cast<int64_t>(ids.size());
  cache.write(plan, layer, {k.data(), DType::f32, {n, spec.num_kv_heads, spec.head_dim_k}},
              {v.data(), DType::f32, {n, spec.num_kv_heads, spec.head_dim_v}});
}

// Whether every layer of the view of sequence `seq` holds the rows of `ids` from position `first`
// on.
inline bool holds_model_rows(const KvView& view, int seq, int layer,
                             const std::vector<int64_t>& ids, int first = 0) {
  const auto b = static_cast<size_t>(seq);
  std::vector<float> k(static_cast<size_t>(view.head_dim_k));
  std::vector<float> v(static_cast<size_t>(view.head_dim_v));
  for (int position = first; position < static_cast<int>(ids.size()); ++position) {
    const int i = position - view.first_pos[b];
    const int64_t page =
        view.page_ids[static_cast<size_t>(view.page_indptr[b] + i / view.block_size)];
    const int64_t tile = i % view.block_size / kTileTokens;
    const int64_t id = ids[static_cast<size_t>(position)];
    for (int head = 0; head < view.num_kv_heads; ++head) {
      decode_k_row(view.format.k, k_tile(view, page, tile, head), i % kTileTokens, k.data(),
                   view.head_dim_k);
      decode_v_row(view.format.v, v_tile(view, page, tile, head), i % kTileTokens, v.data(),
                   view.head_dim_v);
      for (int d = 0; d < view.head_dim_k; ++d) {
        if (k[static_cast<size_t>(d)] != model_value(id, layer, head, d, true)) return false;
      }
      for (int d = 0; d < view.head_dim_v; ++d) {
        if (v[static_cast<size_t>(d)] != model_value(id, layer, head, d, false)) return false;
      }
    }
  }
  return true;
}

}  // namespace kvik::test
