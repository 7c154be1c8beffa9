#include "kvik/layer_cache/install.h"

#include <gtest/gtest.h>

#include "kvik/backend/cpu_backend.h"
#include "support/low_bit_rows.h"

namespace kvik {
namespace {

using test::LayerRows;
using test::rows_of_state;
using test::same_rows;

constexpr KvArrayShape kShape{1, 2, 8, 8, DType::f32, DType::f32};

std::shared_ptr<Backend> backend() {
  static const std::shared_ptr<Backend> kBackend = make_cpu_backend({}).value();
  return kBackend;
}

const LayerRows& rows() {
  static const LayerRows kRows(kShape, 9, 1, 2);
  return kRows;
}

ForeignCache foreign(int64_t offset = 7) {
  ForeignCache cache;
  cache.rows = rows().arrays();
  cache.offset = offset;
  cache.step = 32;
  return cache;
}

// No entry, four that no installer takes, and three that it may.
std::vector<LayerCache> mixed() {
  std::vector<LayerCache> entries;
  entries.emplace_back(std::monostate{});
  ForeignCache ring = foreign();
  ring.has_index = true;
  entries.emplace_back(ring);
  ForeignCache recurrent = foreign();
  recurrent.is_trimmable = false;
  entries.emplace_back(recurrent);
  ForeignCache hybrid = foreign();
  hybrid.has_keys_and_values = false;
  entries.emplace_back(hybrid);
  entries.emplace_back(foreign());
  entries.emplace_back(ForeignCache{});
  entries.emplace_back(TailOwnedKVCache::create({}, rows().keys(), rows().values()).value());
  return entries;
}

TEST(Install, TailOwnedReplacesWhatHoldsRowsInOrder) {
  std::vector<LayerCache> entries = mixed();
  const Result<InstallReport> report =
      install_tail_owned_attention_kv_cache(entries, DetachMode::eval_only);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(to_json(*report),
            "{\"enabled\": true, \"mode\": \"eval_only\", \"entries\": 3, \"skipped\": 4}");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(entries[0]));
  EXPECT_TRUE(std::holds_alternative<ForeignCache>(entries[3]));
  const auto& taken = std::get<TailOwnedKVCache>(entries[4]);
  EXPECT_EQ(taken.step(), 32);
  EXPECT_TRUE(same_rows(*taken.state(), test::first_rows(rows(), 7)));
  EXPECT_TRUE(std::get<TailOwnedKVCache>(entries[5]).empty());
  EXPECT_EQ(std::get<TailOwnedKVCache>(entries[6]).mode(), DetachMode::eval_only);
}

TEST(Install, BlockOwnedSkipsTailOwnedAndCountsAnew) {
  std::vector<LayerCache> entries = mixed();
  Result<InstallReport> report =
      install_block_owned_attention_kv_cache(entries, DetachMode::eval_only, 4);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->entries, 2);
  EXPECT_EQ(report->skipped, 5);
  EXPECT_EQ(report->block_size, 4);
  EXPECT_EQ(std::get<BlockOwnedKVCache>(entries[4]).num_blocks(), 2);
  report = install_block_owned_attention_kv_cache(entries, DetachMode::contiguous_eval, 3);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->entries, 2);
  const auto& block = std::get<BlockOwnedKVCache>(entries[4]);
  EXPECT_EQ(block.num_blocks(), 3);
  EXPECT_TRUE(same_rows(*block.state(), test::first_rows(rows(), 7)));
}

TEST(Install, PagedReplacesAndReconfigures) {
  std::vector<LayerCache> entries = mixed();
  PagedKVCacheOptions options;
  options.block_size = 4;
  options.num_blocks = 4;
  Result<InstallReport> report =
      install_vllm_metal_paged_attention_kv_cache(entries, options, backend());
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(to_json(*report),
            "{\"enabled\": true, \"mode\": \"vllm_metal_paged\", \"entries\": 2, \"skipped\": 5, "
            "\"block_size\": 4, \"num_blocks\": 4, \"turboquant\": false, \"kv_quant\": false, "
            "\"attention_impl\": \"vllm_metal\", \"external_ops_required\": false}");
  options.block_size = 16;
  options.num_blocks = 64;
  EXPECT_EQ(
      install_vllm_metal_paged_attention_kv_cache(entries, options, backend()).status().code(),
      StatusCode::out_of_pages);
  EXPECT_EQ(std::get<PagedKVCache>(entries[5]).num_blocks(), 4) << "none changed";
  options.dynamic = true;
  report = install_vllm_metal_paged_attention_kv_cache(entries, options, backend());
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->entries, 2);
  auto& paged = std::get<PagedKVCache>(entries[4]);
  EXPECT_GE(paged.capacity(), 1024);
  EXPECT_EQ(paged.block_size(), 4);
  EXPECT_TRUE(same_rows(*rows_of_state(paged.state()), test::first_rows(rows(), 7)));
}

TEST(Install, PagedReportsLowBitStorageAndEncodesWhatIsThere) {
  const auto rows_like = [](int64_t head_dim) {
    return test::LayerRows({1, 2, head_dim, head_dim, DType::f32, DType::f32}, 9, 1, 2);
  };
  const test::LayerRows plain = rows_like(64);
  std::vector<LayerCache> entries;
  entries.emplace_back(PagedKVCache::create({}, backend(), plain.keys(), plain.values()).value());
  ForeignCache foreign;
  foreign.rows = plain.arrays();
  foreign.offset = 9;
  entries.emplace_back(std::move(foreign));
  PagedKVCacheOptions options;
  options.kv_quant = KvQuantConfig{KvCode::q6};
  Result<InstallReport> report =
      install_vllm_metal_paged_attention_kv_cache(entries, options, backend());
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->mode, "vllm_metal_paged_kv_q6");
  EXPECT_EQ(report->kv_quant_mode, "q6");
  EXPECT_TRUE(*report->kv_quant && !*report->turboquant);
  for (LayerCache& entry : entries) {
    test::expect_holds(std::get<PagedKVCache>(entry), plain, {KvCode::q6, KvCode::q6});
  }
  options.turboquant = TurboQuantConfig{KvCode::tqk_int2, KvCode::tqv_q8_0};
  options.route = PagedRoute::mirror;
  report = install_vllm_metal_paged_attention_kv_cache(entries, options, backend());
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_NE(to_json(*report).find(
                "\"mode\": \"vllm_metal_paged_turboquant\", \"entries\": 2, \"skipped\": 0"),
            std::string::npos);
  EXPECT_NE(to_json(*report).find("\"turboquant\": true, \"kv_quant\": false, "
                                  "\"turboquant_k_quant\": \"int2\", \"turboquant_v_quant\": "
                                  "\"q8_0\", \"attention_impl\": \"mirror\""),
            std::string::npos)
      << to_json(*report);
  // One layer whose head dim the format does not store: no layer changes.
  const test::LayerRows odd = rows_like(48);
  entries.emplace_back(PagedKVCache::create({}, backend(), odd.keys(), odd.values()).value());
  options.turboquant->k_quant = KvCode::tqk_q8_0;
  const Status refused =
      install_vllm_metal_paged_attention_kv_cache(entries, options, backend()).status();
  EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
  EXPECT_NE(refused.message().find("cache entry 2"), std::string::npos) << refused.message();
  EXPECT_EQ(std::get<PagedKVCache>(entries[0]).paged_stats().turboquant_k_quant, "int2");
}

TEST(Install, FormatsMayDifferFromLayerToLayer) {
  const test::LayerRows rows({1, 2, 64, 64, DType::f32, DType::f32}, 9, 1, 2);
  std::vector<LayerCache> model;
  const std::vector<test::LowBit> formats = test::every_low_bit();
  for (const test::LowBit& low_bit : formats) {
    std::vector<LayerCache> layer;
    layer.emplace_back(PagedKVCache::create({}, backend()).value());
    ASSERT_TRUE(
        install_vllm_metal_paged_attention_kv_cache(layer, low_bit.options, backend()).ok());
    model.push_back(std::move(layer[0]));
  }
  for (int64_t t = 0; t < 9; ++t) {
    for (LayerCache& layer : model) {
      ASSERT_TRUE(std::get<PagedKVCache>(layer)
                      .update_without_fetch(rows_of(rows.keys(), t, t + 1),
                                            rows_of(rows.values(), t, t + 1))
                      .ok());
    }
  }
  for (size_t i = 0; i < formats.size(); ++i) {
    SCOPED_TRACE(formats[i].name());
    test::expect_holds(std::get<PagedKVCache>(model[i]), rows, formats[i].format);
  }
}

TEST(Install, ChangesNoEntryWhenOneFails) {
  std::vector<LayerCache> entries;
  entries.emplace_back(foreign());
  entries.emplace_back(foreign(10));
  EXPECT_EQ(install_tail_owned_attention_kv_cache(entries).status().code(),
            StatusCode::invalid_argument);
  EXPECT_TRUE(std::holds_alternative<ForeignCache>(entries[0]));
}

TEST(Install, AHybridModelKeepsItsOtherLayers) {
  std::vector<LayerCache> entries;
  for (int i = 0; i < 64; ++i) {
    ForeignCache entry;
    entry.is_trimmable = entry.has_keys_and_values = i % 4 == 3;
    entries.emplace_back(entry);
  }
  const Result<InstallReport> report =
      install_vllm_metal_paged_attention_kv_cache(entries, {}, backend());
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->entries, 16);
  EXPECT_EQ(report->skipped, 48);
}

TEST(Install, SumsTheStatisticsOfTheLayers) {
  std::vector<LayerCache> entries = mixed();
  ASSERT_TRUE(install_vllm_metal_paged_attention_kv_cache(entries, {}, backend()).ok());
  const std::optional<TailOwnerStats> stats = tail_owned_attention_kv_stats(entries);
  ASSERT_TRUE(stats.has_value());
  EXPECT_EQ(stats->updates, 1) << "one paged entry was loaded";
  EXPECT_GT(stats->nbytes, 0);
  EXPECT_FALSE(tail_owned_attention_kv_stats({}).has_value());
}

}  // namespace
}  // namespace kvik
