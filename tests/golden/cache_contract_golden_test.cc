// The numbers of the contract (tests/golden/cache_contract/contract.json).
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvik/backend/cpu_backend.h"
#include "kvik/layer_cache/block_owned_kv_cache.h"
#include "kvik/layer_cache/paged_kv_cache.h"
#include "kvik/layer_cache/tail_owned_kv_cache.h"
#include "support/layer_rows.h"

namespace kvik::test {
namespace {

using nlohmann::json;

const json& contract() {
  static const json kContract =
      json::parse(std::ifstream(KVIK_GOLDEN_DIR "/cache_contract/contract.json"));
  return kContract;
}

// Tiny rows: the numbers count rows.
constexpr KvArrayShape kShape{1, 1, 2, 2, DType::f32, DType::f32};

template <class Cache>
Result<KvArrays> update(Cache& cache, int64_t num_rows) {
  const LayerRows rows(kShape, num_rows, 1, 2);
  return cache.update_and_fetch(rows.keys(), rows.values());
}

void report(const char* section, size_t cases, size_t operations) {
  std::printf("%s: %zu cases, %zu operations\n", section, cases, operations);
}

TEST(CacheContract, TailOwnedCapacityAndUpdates) {
  size_t operations = 0;
  for (const json& c : contract()["tail_owned"]) {
    TailOwnedKVCache cache = TailOwnedKVCache::create({c["step"].get<int64_t>()}).value();
    for (const json& op : c["ops"]) {
      if (op["op"] == "update") {
        ASSERT_TRUE(update(cache, op["s"]).ok());
      } else {
        EXPECT_EQ(cache.trim(op["n"].get<int64_t>()), op["returned"]);
      }
      EXPECT_EQ(cache.offset(), op["after"]["offset"]);
      EXPECT_EQ(cache.capacity(), op["after"]["kvik_cap"]);
      EXPECT_EQ(cache.tail_owner_stats().updates, op["after"]["updates"]);
      ++operations;
    }
  }
  report("tail_owned", contract()["tail_owned"].size(), operations);
  EXPECT_EQ(contract()["tail_owned"].size(), 7U);
}

TEST(CacheContract, BlockOwnedBlocksPiecesAndSlices) {
  size_t operations = 0;
  for (const json& c : contract()["block_owned"]) {
    BlockOwnedKVCache cache = BlockOwnedKVCache::create({c["block_size"].get<int64_t>()}).value();
    for (const json& op : c["ops"]) {
      if (op["op"] == "update") {
        ASSERT_TRUE(update(cache, op["s"]).ok());
      } else {
        EXPECT_EQ(cache.trim(op["n"].get<int64_t>()), op["returned"]);
      }
      EXPECT_EQ(cache.offset(), op["after"]["offset"]);
      EXPECT_EQ(cache.num_blocks(), op["after"]["blocks"]);
      EXPECT_EQ(cache.tail_owner_stats().updates, op["after"]["updates"]);
      json slices = json::array();
      for (const auto& slice : cache.active_block_slices()) {
        slices.push_back({slice.start, slice.rows.num_rows()});
      }
      EXPECT_EQ(slices, op["after"]["slices"]);
      ++operations;
    }
  }
  report("block_owned", contract()["block_owned"].size(), operations);
  EXPECT_EQ(contract()["block_owned"].size(), 5U);
}

PagedKVCache make_paged(int64_t block_size = 16, int64_t num_blocks = 1024, bool dynamic = false,
                        int64_t window = 0) {
  PagedKVCacheOptions options;
  options.block_size = block_size;
  options.num_blocks = num_blocks;
  options.dynamic = dynamic;
  if (window > 0) options.context_window = window;
  static const std::shared_ptr<Backend> kBackend = make_cpu_backend({}).value();
  return PagedKVCache::create(options, kBackend).value();
}

bool contains(const std::string& text, const json& number) {
  return text.find(number.dump()) != std::string::npos;
}

// An update of the paged cache, or the refusal that the case expects.
void check_paged_update(PagedKVCache& cache, const json& op) {
  const Result<KvArrays> result = update(cache, op["s"]);
  if (!op.contains("error")) {
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    return;
  }
  EXPECT_EQ(result.status().code(), StatusCode::out_of_pages);
  const std::string& message = result.status().message();
  EXPECT_NE(message.find(op["error"].get<std::string>()), std::string::npos) << message;
  EXPECT_TRUE(contains(message, op["need"]) && contains(message, op["have"])) << message;
}

TEST(CacheContract, PagedBlocksGrowthAndRefusals) {
  size_t operations = 0;
  for (const json& c : contract()["paged"]) {
    SCOPED_TRACE(c["block_size"].dump() + " x " + c["num_blocks"].dump());
    PagedKVCache cache = make_paged(c["block_size"], c["num_blocks"], c["dynamic"], c["window"]);
    for (const json& op : c["ops"]) {
      if (op["op"] == "update") {
        check_paged_update(cache, op);
      } else {
        EXPECT_EQ(cache.trim(op["n"].get<int64_t>()), op["returned"]);
      }
      const PagedStats stats = cache.paged_stats();
      EXPECT_EQ(stats.offset, op["after"]["offset"]);
      EXPECT_EQ(stats.num_blocks, op["after"]["n"]);
      EXPECT_EQ(stats.grow_events, op["after"]["grow_events"]);
      EXPECT_EQ(stats.updates, op["after"]["updates"]);
      ++operations;
    }
  }
  report("paged", contract()["paged"].size(), operations);
  EXPECT_EQ(contract()["paged"].size(), 8U);
}

std::optional<int64_t> window_of(const json& number) {
  if (number == 0) return std::nullopt;
  return number.get<int64_t>();
}

TEST(CacheContract, BlocksGrowByTheRule) {
  for (const json& c : contract()["growth"]) {
    EXPECT_EQ(grow_num_blocks(c[0], c[1], c[2], window_of(c[3])).value(), c[4]) << c.dump();
  }
  for (const json& c : contract()["growth_past_window"]) {
    const json& a = c["args"];
    EXPECT_EQ(grow_num_blocks(a[0], a[1], a[2], window_of(a[3])).status().code(),
              StatusCode::out_of_pages);
    EXPECT_EQ(c["expect"], "out_of_pages");
  }
  report("growth", contract()["growth"].size(), contract()["growth"].size());
  report("growth_past_window", contract()["growth_past_window"].size(),
         contract()["growth_past_window"].size());
  EXPECT_EQ(contract()["growth"].size() + contract()["growth_past_window"].size(), 90U);
}

TEST(CacheContract, DynamicCachesStartWithTheBlocksOfTheRule) {
  for (const json& c : contract()["dynamic_initial_blocks"]) {
    InitialBlocksOptions options;
    options.num_blocks = c[0];
    options.dynamic = c[1];
    options.min_blocks = c[2];
    options.tokens = c[3];
    options.previous_high_water = c[4];
    options.margin = c[5];
    options.block_size = c[6];
    EXPECT_EQ(initial_num_blocks(options).value(), c[7]) << c.dump();
  }
  report("dynamic_initial_blocks", contract()["dynamic_initial_blocks"].size(),
         contract()["dynamic_initial_blocks"].size());
  EXPECT_EQ(contract()["dynamic_initial_blocks"].size(), 24U);
}

TEST(CacheContract, RowsLieInTheSlotsOfTheirBlocks) {
  for (const json& c : contract()["slots"]) {
    const auto table = c["block_ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(page_slots(c["block_size"], table, c["first_pos"], c["rows"]).value(),
              c["slots"].get<std::vector<int64_t>>());
  }
  report("slots", contract()["slots"].size(), contract()["slots"].size());
  EXPECT_EQ(contract()["slots"].size(), 9U);
}

TEST(CacheContract, BlocksAreSplitForKernelsOfOtherPrograms) {
  int64_t refused = 0;
  for (const json& c : contract()["block_translation"]) {
    const auto table = c.value("table", std::vector<int32_t>{0});
    const Result<SplitBlockTable> split = split_block_table(c["block"], table);
    if (c["kernel_block"].is_string()) {
      ASSERT_EQ(c["kernel_block"], "error");
      EXPECT_EQ(split.status().code(), StatusCode::invalid_argument) << c.dump();
      ++refused;
      continue;
    }
    EXPECT_EQ(split->block_size, c["kernel_block"].get<int64_t>());
    EXPECT_EQ(split->block_table, c["expanded"].get<std::vector<int32_t>>());
    // The parts hold the slots of the whole, in order.
    const int64_t rows = c["block"].get<int64_t>() * static_cast<int64_t>(table.size());
    EXPECT_EQ(page_slots(split->block_size, split->block_table, 0, rows).value(),
              page_slots(c["block"], table, 0, rows).value());
  }
  EXPECT_EQ(refused, 2);
  report("block_translation", contract()["block_translation"].size(),
         contract()["block_translation"].size());
  EXPECT_EQ(contract()["block_translation"].size(), 8U);
}

TEST(CacheContract, IdsThatNoSplitTableCanHoldAreRefused) {
  for (const int32_t page : {-1, INT32_MAX / 2 + 1, INT32_MAX}) {
    EXPECT_EQ(split_block_table(64, std::vector<int32_t>{page}).status().code(),
              StatusCode::invalid_argument);
  }
  EXPECT_EQ(split_block_table(64, std::vector<int32_t>{INT32_MAX / 2})->block_table.back(),
            INT32_MAX);
  for (const int64_t block_size : {int64_t{0}, int64_t{-32}, int64_t{1} << 62}) {
    EXPECT_FALSE(split_block_table(block_size, std::vector<int32_t>{1}).ok()) << block_size;
  }
}

// Bytes of a token of one KV head, K and V together, as codes and in pages.
void check_low_bit_bytes(const PagedKVCacheOptions& options, const json& c) {
  const int64_t head_dim = c["D"];
  const int64_t bytes = c.contains("bytes_k_plus_v") ? c["bytes_k_plus_v"].get<int64_t>()
                                                     : 2 * c["bytes_per_row"].get<int64_t>();
  PagedKVCache cache = PagedKVCache::create(options, make_cpu_backend({}).value()).value();
  const LayerRows rows({1, 3, head_dim, head_dim, DType::f16, DType::f16}, 20, 1, 2);
  ASSERT_TRUE(cache.update_without_fetch(rows.keys(), rows.values()).ok()) << c.dump();
  const KvCodes codes = **cache.export_codes();
  EXPECT_EQ(static_cast<int64_t>(codes.keys.size() + codes.values.size()), 3 * 20 * bytes)
      << c.dump();
  EXPECT_GE(cache.nbytes(), 3 * 32 * bytes) << c.dump();
  // Where 16 rows fill the lines of a tile, pages hold nothing else.
  if (head_dim % 32 != 0) return;
  EXPECT_EQ(cache.nbytes() % (3 * 16 * bytes), 0) << c.dump();
}

TEST(CacheContract, LowBitRowsHaveTheBytesOfTheirFormats) {
  const json& section = contract()["bytes_per_token_per_kv_head"];
  for (const json& c : section["kv_quant"]) {
    PagedKVCacheOptions options;
    options.kv_quant = KvQuantConfig{parse_kv_quant_mode(c["mode"].get<std::string>()).value()};
    check_low_bit_bytes(options, c);
  }
  for (const json& c : section["turboquant"]) {
    PagedKVCacheOptions options;
    options.turboquant = TurboQuantConfig{
        parse_turboquant_key(c["k"].get<std::string>()).value(),
        parse_turboquant_value("q" + std::to_string(c["v"].get<int>()) + "_0").value()};
    check_low_bit_bytes(options, c);
  }
  for (const json& c : section["tq_row"]) {
    PagedKVCacheOptions options;
    options.format = parse_kv_format(c["mode"].get<std::string>()).value();
    check_low_bit_bytes(options, c);
  }
  const size_t cases =
      section["kv_quant"].size() + section["turboquant"].size() + section["tq_row"].size();
  report("bytes_per_token_per_kv_head", cases, cases);
  EXPECT_EQ(cases, 130U);
  EXPECT_EQ(section.size(), 3U) << "a new family needs a test";
}

TEST(CacheContract, NamesTheSectionsThatAreLeftOut) {
  std::printf(
      "left out: block_translation (%zu cases; kernels take pages of any multiple of 16 "
      "tokens, nothing is split)\n",
      contract()["block_translation"].size());
  EXPECT_EQ(contract().size(), 13U) << "a new section needs a test or a reason";
}

template <class Cache>
void check_trim(Cache cache, const json& c) {
  if (c["offset"] > 0) {
    ASSERT_TRUE(update(cache, c["offset"]).ok());
  }
  EXPECT_EQ(cache.trim(c["n"].get<int64_t>()), c["returned"]);
  EXPECT_EQ(cache.offset(), c["offset_after"]);
}

TEST(CacheContract, TrimReturnsWhatItRemoved) {
  for (const json& c : contract()["trim"]) {
    check_trim(TailOwnedKVCache::create().value(), c);
    check_trim(BlockOwnedKVCache::create().value(), c);
    check_trim(make_paged(), c);
  }
  report("trim", contract()["trim"].size(), contract()["trim"].size());
  EXPECT_EQ(contract()["trim"].size(), 15U);
}

std::vector<std::string> texts(const json& list) { return list.get<std::vector<std::string>>(); }

void check_tail_meta(const json& c) {
  TailOwnedKVCache cache = TailOwnedKVCache::create().value();
  if (c.contains("live")) {
    cache = TailOwnedKVCache::create({c["live"]["step"].get<int64_t>()}).value();
    ASSERT_TRUE(update(cache, c["live"]["offset"]).ok());
    EXPECT_EQ(cache.meta_state(), texts(c["get"]));
    return;
  }
  if (c.contains("rows")) {
    ASSERT_TRUE(update(cache, c["rows"]).ok());
  }
  const std::vector<std::string> before = cache.meta_state();
  const Status status = cache.set_meta_state(texts(c["set"]));
  if (c["expect"] == "ignored") {
    EXPECT_TRUE(status.ok());
    EXPECT_EQ(cache.meta_state(), before);
  } else if (c["expect"] == "invalid_argument") {
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(cache.meta_state(), before);
  } else {
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(cache.step(), c["expect"]["step"]);
    EXPECT_EQ(cache.offset(), c["expect"]["offset"]);
    const std::string mode = c["expect"]["mode"];
    EXPECT_EQ(detach_mode_name(cache.mode()), mode == "unchanged" ? before[2] : mode);
  }
}

void check_block_meta(const json& c) {
  BlockOwnedKVCache cache =
      BlockOwnedKVCache::create({c["live"]["block_size"].get<int64_t>()}).value();
  ASSERT_TRUE(update(cache, c["live"]["offset"]).ok());
  if (c.contains("get")) {
    EXPECT_EQ(cache.meta_state(), texts(c["get"]));
    return;
  }
  EXPECT_EQ(cache.set_meta_state(texts(c["set"])).code(), StatusCode::invalid_argument);
  EXPECT_EQ(c["expect"], "invalid_argument");
  EXPECT_EQ(cache.block_size(), c["live"]["block_size"]);
}

void check_paged_meta(const json& c) {
  if (c.contains("fresh")) {
    PagedKVCache cache = make_paged(4, 4);
    ASSERT_TRUE(cache.set_meta_state(texts(c["set"])).ok());
    EXPECT_EQ(cache.block_size(), c["expect"]["block_size"]);
    EXPECT_EQ(cache.num_blocks(), c["expect"]["num_blocks"]);
    EXPECT_EQ(cache.offset(), c["expect"]["offset"]);
    EXPECT_EQ(cache.empty(), c["expect"]["empty"]);
    return;
  }
  PagedKVCache cache = make_paged(c["live"]["block_size"], c["live"]["num_blocks"]);
  ASSERT_TRUE(update(cache, c["live"]["offset"]).ok());
  if (c.contains("get")) {
    EXPECT_EQ(cache.meta_state(), texts(c["get"]));
    return;
  }
  const Status status = cache.set_meta_state(texts(c["set"]));
  if (c["expect"].is_string()) {
    EXPECT_EQ(c["expect"], "error containing 'exceeds page capacity'");
    EXPECT_NE(status.message().find("exceeds page capacity"), std::string::npos);
    EXPECT_EQ(cache.offset(), c["live"]["offset"]);
    return;
  }
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(cache.block_size(), c["expect"]["block_size"]);
  EXPECT_EQ(cache.num_blocks(), c["expect"]["num_blocks"]);
  EXPECT_EQ(cache.offset(), c["expect"]["offset"]);
}

TEST(CacheContract, MetaStatesRestoreOrAreRefused) {
  size_t run = 0;
  for (const json& c : contract()["meta_state"]) {
    SCOPED_TRACE(c.dump());
    if (c["class"] == "tail") {
      check_tail_meta(c);
    } else if (c["class"] == "block") {
      check_block_meta(c);
    } else {
      check_paged_meta(c);
    }
    ++run;
  }
  report("meta_state", run, run);
  EXPECT_EQ(run, 12U);
}

}  // namespace
}  // namespace kvik::test
