// The examples of the articles about the two caches, in C++.
#include <gtest/gtest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "kvik/backend/cpu_backend.h"
#include "kvik/layer_cache/paged_kv_cache.h"
#include "kvik/layer_cache/tail_owned_kv_cache.h"
#include "support/layer_rows.h"

namespace kvik::test {
namespace {

using nlohmann::json;

constexpr KvArrayShape kShape{1, 2, 64, 64, DType::f32, DType::f32};

TEST(ContractExamples, ConstructWithDefaults) {
  const TailOwnedKVCache tail = TailOwnedKVCache::create().value();
  EXPECT_EQ(tail.step(), 256);
  EXPECT_EQ(tail.offset(), 0);
  EXPECT_EQ(detach_mode_name(tail.mode()), "contiguous_eval");
  EXPECT_TRUE(tail.empty());
  EXPECT_EQ(tail.nbytes(), 0);
  const PagedKVCache paged = PagedKVCache::create({}, make_cpu_backend({}).value()).value();
  EXPECT_EQ(paged.block_size(), 16);
  EXPECT_EQ(paged.num_blocks(), 1024);
}

TEST(ContractExamples, OneUpdateIsCounted) {
  TailOwnedKVCache cache = TailOwnedKVCache::create().value();
  const LayerRows zeros = LayerRows::filled(kShape, 1, 0.0f);
  ASSERT_TRUE(cache.update_and_fetch(zeros.keys(), zeros.values()).ok());
  const json stats = json::parse(to_json(cache.tail_owner_stats()));
  EXPECT_EQ(stats["mode"], "contiguous_eval");
  EXPECT_EQ(stats["updates"], 1);
  EXPECT_EQ(stats["arrays"], 2);
  EXPECT_EQ(stats["bytes"], 2 * 2 * 64 * 4);
  EXPECT_GE(stats["time_s"], 0);
  EXPECT_FALSE(cache.empty());
  EXPECT_EQ(cache.nbytes(), 256 * 2 * 2 * 64 * 4);
}

TEST(ContractExamples, MetaStateRestoresAfterState) {
  TailOwnedKVCache cache = TailOwnedKVCache::create().value();
  const LayerRows rows(kShape, 128, 1, 2);
  ASSERT_TRUE(cache.update_and_fetch(rows.keys(), rows.values()).ok());
  EXPECT_EQ(cache.meta_state(), (std::vector<std::string>{"256", "128", "contiguous_eval"}));
  TailOwnedKVCache restored = TailOwnedKVCache::create().value();
  ASSERT_TRUE(restored.set_state(cache.state()).ok());
  ASSERT_TRUE(restored.set_meta_state(cache.meta_state()).ok());
  EXPECT_EQ(restored.offset(), 128);
  EXPECT_TRUE(same_rows(*restored.state(), rows));
  const TailOwnedKVCache taken =
      TailOwnedKVCache::from_cache(cache, DetachMode::contiguous_eval).value();
  EXPECT_EQ(taken.size(), 128);
}

TEST(ContractExamples, MakeMaskOfTenQueriesAndKeys) {
  const TailOwnedKVCache cache = TailOwnedKVCache::create().value();
  const CausalMask mask = cache.make_mask(10, 10, MaskType::boolean).value();
  for (int64_t q = 0; q < 10; ++q) {
    for (int64_t k = 0; k < 10; ++k) EXPECT_EQ(mask.visible(q, k), k <= q);
  }
}

// A model of one layer without weights: every token's embedding is its query, key and value.
class ToyModel {
 public:
  static constexpr int kHeads = 2;
  static constexpr int kDim = 32;

  // Outputs of the tokens, [q_len, kHeads * kDim].
  std::vector<float> operator()(const std::vector<int>& input_ids, const MaskView& attention_mask,
                                PagedKVCache& cache) const {
    const auto n = static_cast<int64_t>(input_ids.size());
    std::vector<float> rows;  // [1, heads, n, dim]
    for (uint64_t h = 0; h < kHeads; ++h) {
      for (const int id : input_ids) {
        const std::vector<float> row = bell(static_cast<uint64_t>(id) * 2 + h, kDim);
        rows.insert(rows.end(), row.begin(), row.end());
      }
    }
    const ConstTensorView view(rows.data(), DType::f32, {1, kHeads, n, kDim});
    EXPECT_TRUE(cache.update_without_fetch(view, view, PagedPhase::prefill).ok());
    std::vector<float> outputs(rows.size());
    PagedAttentionCall call;
    call.queries = view;
    call.out = TensorView(outputs.data(), DType::f32, {1, kHeads, n, kDim});
    call.mask = {AttentionMask::Kind::array, attention_mask};
    call.phase = PagedPhase::prefill;
    EXPECT_TRUE(cache.attend(call).ok());
    return outputs;
  }
};

TEST(ContractExamples, AModelCallsThePagedCache) {
  PagedKVCache cache = PagedKVCache::create({}, make_cpu_backend({}).value()).value();
  const ToyModel model;
  const std::vector<int> input_ids = {5,  3,  8,  1,  9,  2,  6,  4,  7,
                                      11, 12, 13, 14, 15, 16, 17, 18, 19};
  const CausalMask mask = cache.make_mask(18, 18, MaskType::boolean).value();
  const std::vector<float> outputs = model(input_ids, mask_view(mask), cache);
  // The first token sees itself alone.
  EXPECT_EQ(outputs[0], bell(10, ToyModel::kDim)[0]);
  const json stats = json::parse(to_json(cache.paged_stats()));
  EXPECT_EQ(stats["allocated_blocks"], 2);
  EXPECT_EQ(stats["paged_attention_calls"], 1);
}

TEST(ContractExamples, PagedStatsHaveEveryKey) {
  PagedKVCache cache = PagedKVCache::create({}, make_cpu_backend({}).value()).value();
  const LayerRows rows(kShape, 20, 1, 2);
  ASSERT_TRUE(cache.update_without_fetch(rows.keys(), rows.values()).ok());
  const json stats = json::parse(to_json(cache.paged_stats()));
  for (const char* key : {"mode",
                          "block_size",
                          "num_blocks",
                          "capacity",
                          "offset",
                          "updates",
                          "paged_attention_calls",
                          "partitioned_attention_calls",
                          "turboquant_attention_calls",
                          "kv_quant_attention_calls",
                          "gqa_sdpa_calls",
                          "gqa_sdpa_calls_by_route",
                          "gqa_sdpa_calls_by_phase",
                          "gqa_sdpa_route_misses_by_phase_reason",
                          "gqa_sdpa_route_misses_by_q_len",
                          "gqa_sdpa_last_route_miss",
                          "active_array_calls",
                          "active_array_time_s",
                          "kv_quant_dequant_calls",
                          "kv_quant_dequant_time_s",
                          "kv_quant_dequant_tokens",
                          "kv_quant_dequant_memo_hits",
                          "kv_quant_dequant_memo_rebuilds",
                          "kv_quant_kernel_calls",
                          "kv_quant_route",
                          "kv_quant_route_offset",
                          "dense_fallback_calls",
                          "prefill_dense_fallback_calls",
                          "decode_dense_fallback_calls",
                          "ar_dense_fallback_calls",
                          "postcommit_dense_fallback_calls",
                          "paged_attention_bailouts_by_phase_reason",
                          "paged_attention_large_q_path",
                          "large_q_split_sdpa_fallback_calls",
                          "large_q_split_sdpa_fallback_calls_by_phase",
                          "prefill_large_q_split_sdpa_fallback_calls",
                          "decode_large_q_split_sdpa_fallback_calls",
                          "partitioned_paged_calls",
                          "partitioned_paged_calls_by_phase",
                          "prefill_partitioned_paged_calls",
                          "decode_partitioned_paged_calls",
                          "grow_events",
                          "turboquant",
                          "turboquant_k_quant",
                          "turboquant_v_quant",
                          "kv_quant",
                          "kv_quant_mode",
                          "sliding_window",
                          "bytes",
                          "cache_write_time_s",
                          "attention_time_s",
                          "allocated_blocks",
                          "shared_blocks",
                          "copy_on_write_copies",
                          "route",
                          "instruction_set"}) {
    EXPECT_TRUE(stats.contains(key)) << key;
  }
  EXPECT_EQ(stats["mode"], "vllm_metal_paged");
  EXPECT_EQ(stats["offset"], 20);
  EXPECT_EQ(stats["capacity"], 16384);
  EXPECT_EQ(stats["instruction_set"].get<std::string>().substr(0, 4), "cpu-");
}

TEST(ContractExamples, APagedCacheWithBothQuantizedConfigsRunsTheModel) {
  PagedKVCacheOptions options;
  options.turboquant = TurboQuantConfig{parse_turboquant_key("q8_0").value(),
                                        parse_turboquant_value("q3_0").value()};
  options.kv_quant = KvQuantConfig{KvCode::q8, DType::bf16};
  PagedKVCache cache = PagedKVCache::create(options, make_cpu_backend({}).value()).value();
  const CausalMask mask = cache.make_mask(4, 4, MaskType::boolean).value();
  const std::vector<float> outputs = ToyModel()({5, 3, 8, 1}, mask_view(mask), cache);
  // The first token sees itself alone: its value as 3 bits hold it.
  const std::vector<float> exact = bell(10, ToyModel::kDim);
  double error = 0;
  double power = 0;
  for (size_t d = 0; d < exact.size(); ++d) {
    error += std::pow(outputs[d] - exact[d], 2);
    power += std::pow(exact[d], 2);
  }
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 0.1 * power);
  const json stats = json::parse(to_json(cache.paged_stats()));
  EXPECT_EQ(stats["allocated_blocks"], 1);
  EXPECT_EQ(stats["paged_attention_calls"], 1);
  EXPECT_EQ(stats["turboquant_attention_calls"], 1);
  EXPECT_EQ(stats["turboquant_k_quant"], "q8_0");
  EXPECT_EQ(stats["turboquant_v_quant"], "q3_0");
  EXPECT_EQ(stats["kv_quant"], false) << "TurboQuant wins";
}

}  // namespace
}  // namespace kvik::test
