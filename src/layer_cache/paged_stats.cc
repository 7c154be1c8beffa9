#include "kvik/layer_cache/paged_stats.h"

#include "layer_cache/json.h"

namespace kvik {

std::string to_json(const PagedStats& stats) {
  internal::JsonObject json;
  json.add("mode", stats.mode);
  json.add("block_size", stats.block_size);
  json.add("num_blocks", stats.num_blocks);
  json.add("capacity", stats.capacity);
  json.add("offset", stats.offset);
  json.add("updates", stats.updates);
  json.add("paged_attention_calls", stats.paged_attention_calls);
  json.add("partitioned_attention_calls", stats.partitioned_attention_calls);
  json.add("turboquant_attention_calls", stats.turboquant_attention_calls);
  json.add("kv_quant_attention_calls", stats.kv_quant_attention_calls);
  json.add("gqa_sdpa_calls", stats.gqa_sdpa_calls);
  json.add("gqa_sdpa_calls_by_route", stats.gqa_sdpa_calls_by_route);
  json.add("gqa_sdpa_calls_by_phase", stats.gqa_sdpa_calls_by_phase);
  json.add("gqa_sdpa_route_misses_by_phase_reason", stats.gqa_sdpa_route_misses_by_phase_reason);
  json.add("gqa_sdpa_route_misses_by_q_len", stats.gqa_sdpa_route_misses_by_q_len);
  json.add("gqa_sdpa_last_route_miss", stats.gqa_sdpa_last_route_miss);
  json.add("active_array_calls", stats.active_array_calls);
  json.add("active_array_time_s", stats.active_array_time_s);
  json.add("kv_quant_dequant_calls", stats.kv_quant_dequant_calls);
  json.add("kv_quant_dequant_time_s", stats.kv_quant_dequant_time_s);
  json.add("kv_quant_dequant_tokens", stats.kv_quant_dequant_tokens);
  json.add("kv_quant_dequant_memo_hits", stats.kv_quant_dequant_memo_hits);
  json.add("kv_quant_dequant_memo_rebuilds", stats.kv_quant_dequant_memo_rebuilds);
  json.add("kv_quant_kernel_calls", stats.kv_quant_kernel_calls);
  json.add("kv_quant_route", stats.kv_quant_route);
  json.add("kv_quant_route_offset", stats.kv_quant_route_offset);
  json.add("dense_fallback_calls", stats.dense_fallback_calls);
  json.add("prefill_dense_fallback_calls", stats.prefill_dense_fallback_calls);
  json.add("decode_dense_fallback_calls", stats.decode_dense_fallback_calls);
  json.add("ar_dense_fallback_calls", stats.ar_dense_fallback_calls);
  json.add("postcommit_dense_fallback_calls", stats.postcommit_dense_fallback_calls);
  json.add("paged_attention_bailouts_by_phase_reason",
           stats.paged_attention_bailouts_by_phase_reason);
  json.add("paged_attention_large_q_path", stats.paged_attention_large_q_path);
  json.add("large_q_split_sdpa_fallback_calls", stats.large_q_split_sdpa_fallback_calls);
  json.add("large_q_split_sdpa_fallback_calls_by_phase",
           stats.large_q_split_sdpa_fallback_calls_by_phase);
  json.add("prefill_large_q_split_sdpa_fallback_calls",
           stats.prefill_large_q_split_sdpa_fallback_calls);
  json.add("decode_large_q_split_sdpa_fallback_calls",
           stats.decode_large_q_split_sdpa_fallback_calls);
  json.add("partitioned_paged_calls", stats.partitioned_paged_calls);
  json.add("partitioned_paged_calls_by_phase", stats.partitioned_paged_calls_by_phase);
  json.add("prefill_partitioned_paged_calls", stats.prefill_partitioned_paged_calls);
  json.add("decode_partitioned_paged_calls", stats.decode_partitioned_paged_calls);
  json.add("grow_events", stats.grow_events);
  json.add("turboquant", stats.turboquant);
  json.add("turboquant_k_quant", stats.turboquant_k_quant);
  json.add("turboquant_v_quant", stats.turboquant_v_quant);
  json.add("kv_quant", stats.kv_quant);
  json.add("kv_quant_mode", stats.kv_quant_mode);
  json.add("sliding_window", stats.sliding_window);
  json.add("bytes", stats.bytes);
  json.add("cache_write_time_s", stats.cache_write_time_s);
  json.add("attention_time_s", stats.attention_time_s);
  json.add("batch", stats.batch);
  json.add("allocated_blocks", stats.allocated_blocks);
  json.add("shared_blocks", stats.shared_blocks);
  json.add("copy_on_write_copies", stats.copy_on_write_copies);
  json.add("copies", stats.copies);
  json.add("committed_bytes", stats.committed_bytes);
  json.add("resident_bytes", stats.resident_bytes);
  json.add("format", stats.format);
  json.add("mirror_bytes", stats.mirror_bytes);
  json.add("route", stats.route);
  json.add("route_offset", stats.route_offset);
  json.add("instruction_set", stats.instruction_set);
  return json.text();
}

}  // namespace kvik
