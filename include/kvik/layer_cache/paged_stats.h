// Counters of the paged one-layer cache.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "kvik/core/export.h"
#include "kvik/layer_cache/paged_options.h"

namespace kvik {

// Counts by phase or by "phase:reason".
using PagedCounts = std::map<std::string, int64_t>;

// The keys of the contract first, in its order, then Kvik's. Those marked 0 count routes that Kvik
// has no need of: its one kernel folds the query heads of a group and splits long ranges itself.
struct PagedStats {
  std::string mode;  // "vllm_metal_paged"
  int64_t block_size = 0;
  int64_t num_blocks = 0;
  int64_t capacity = 0;  // tokens of a batch row
  int64_t offset = 0;
  int64_t updates = 0;
  int64_t paged_attention_calls = 0;        // served from pages or gathered rows
  int64_t partitioned_attention_calls = 0;  // as partitioned_paged_calls
  int64_t turboquant_attention_calls = 0;   // calls on rows stored by TurboQuant, by either route
  int64_t kv_quant_attention_calls = 0;     // the same, by KV-Quant
  int64_t gqa_sdpa_calls = 0;               // 0
  PagedCounts gqa_sdpa_calls_by_route;
  PagedCounts gqa_sdpa_calls_by_phase;
  PagedCounts gqa_sdpa_route_misses_by_phase_reason;
  PagedCounts gqa_sdpa_route_misses_by_q_len;
  std::optional<std::string> gqa_sdpa_last_route_miss;
  int64_t active_array_calls = 0;  // copies of all rows into arrays
  double active_array_time_s = 0;
  // The mirror, of every low-bit format: calls that read it; tokens decoded for it (each row once,
  // unless it was rewritten); calls that found no new row; times it was made from nothing.
  int64_t kv_quant_dequant_calls = 0;
  double kv_quant_dequant_time_s = 0;
  int64_t kv_quant_dequant_tokens = 0;
  int64_t kv_quant_dequant_memo_hits = 0;
  int64_t kv_quant_dequant_memo_rebuilds = 0;
  int64_t kv_quant_kernel_calls = 0;          // KV-Quant calls whose kernel read the codes
  std::optional<std::string> kv_quant_route;  // as route, of KV-Quant: "packed", "mirror"
  std::optional<int64_t> kv_quant_route_offset;
  int64_t dense_fallback_calls = 0;  // calls that attend() served after paged attention declined
  int64_t prefill_dense_fallback_calls = 0;
  int64_t decode_dense_fallback_calls = 0;  // phase decode_verify
  int64_t ar_dense_fallback_calls = 0;
  int64_t postcommit_dense_fallback_calls = 0;
  PagedCounts paged_attention_bailouts_by_phase_reason;
  std::optional<std::string> paged_attention_large_q_path;  // "partitioned_paged"
  int64_t large_q_split_sdpa_fallback_calls = 0;            // 0
  PagedCounts large_q_split_sdpa_fallback_calls_by_phase;
  int64_t prefill_large_q_split_sdpa_fallback_calls = 0;
  int64_t decode_large_q_split_sdpa_fallback_calls = 0;
  int64_t partitioned_paged_calls = 0;  // calls with `partitioned` at partition_threshold or beyond
  PagedCounts partitioned_paged_calls_by_phase;
  int64_t prefill_partitioned_paged_calls = 0;
  int64_t decode_partitioned_paged_calls = 0;
  int64_t grow_events = 0;
  bool turboquant = false;
  std::optional<std::string> turboquant_k_quant;
  std::optional<std::string> turboquant_v_quant;
  bool kv_quant = false;
  std::optional<std::string> kv_quant_mode;
  std::optional<int64_t> sliding_window;
  int64_t bytes = 0;  // nbytes(), the mirror included
  double cache_write_time_s = 0;
  double attention_time_s = 0;

  // Beyond the contract.
  int64_t batch = 0;
  int64_t allocated_blocks = 0;       // blocks that hold rows of this cache, all batch rows
  int64_t shared_blocks = 0;          // pages that forks hold together
  int64_t copy_on_write_copies = 0;   // pages copied because a fork could see them
  int64_t copies = 0;                 // moves of all rows into a pool of their own
  int64_t committed_bytes = 0;        // memory asked of the system
  int64_t resident_bytes = 0;         // memory that the system holds
  std::optional<std::string> format;  // of stored rows, "f16:f16"; none before the first write
  int64_t mirror_bytes = 0;
  std::optional<std::string> route;  // latched by the request's first attention call
  std::optional<int64_t> route_offset;
  std::string instruction_set;  // name of the back end
};

// One object with the members as keys, in order.
KVIK_API std::string to_json(const PagedStats& stats);

// The last call that paged attention declined.
struct PagedBailout {
  PagedPhase phase = PagedPhase::unknown;
  std::string reason;
  PagedRoute impl = PagedRoute::paged;
  int64_t offset = 0;
  int64_t q_len = 0;
  std::optional<int64_t> max_q_len;
  int64_t block_size = 0;
  std::optional<int64_t> sliding_window;
  bool partitioned_enabled = false;
  int64_t partition_threshold = 0;
};

}  // namespace kvik
