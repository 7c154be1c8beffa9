#include "kvik/eval/kv_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvik/backend/cpu_backend.h"
#include "support/tiny_model.h"

namespace kvik {
namespace {

using test::TinyModel;
using ::testing::HasSubstr;

constexpr KvFormat kFormats[] = {{KvCode::f16, KvCode::f16},
                                 {KvCode::f32, KvCode::bf16},
                                 {KvCode::tcq4, KvCode::tcq3},
                                 {KvCode::q8, KvCode::q4}};

std::shared_ptr<const Model> load_plain() {
  static TinyModel* const tiny = new TinyModel({.num_layers = 3, .head_dim = 64, .rope_dim = 64});
  static const std::shared_ptr<const Model> model = tiny->load().value();
  return model;
}

std::shared_ptr<const Model> load_windowed() {
  static const std::shared_ptr<const Model> model =
      Model::load(KVIK_GOLDEN_DIR "/tiny_models/gemma3.gguf").value();
  return model;
}

FormatPlan plan_of(const Model& model, KvFormat format, const PlanParams& params) {
  Result<FormatPlan> plan = plan_cache(model, {.format = format}, params);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *plan : FormatPlan();
}

TEST(KvPlan, BytesOfATokenAreThoseOfItsRows) {
  const FormatPlan plan = plan_of(*load_plain(), {KvCode::f16, KvCode::tcq4}, {.context = 32});
  ASSERT_EQ(plan.layers.size(), 3);
  for (const LayerBytes& layer : plan.layers) {
    EXPECT_EQ(layer.k, 2 * 64 * 2);
    EXPECT_EQ(layer.v, 2 * (32 + 2));
  }
  EXPECT_EQ(plan.bytes_per_token, 3 * (256 + 68));
  EXPECT_EQ(plan.growing_bytes_per_token, plan.bytes_per_token);
  EXPECT_EQ(plan.num_tokens, 32);
  EXPECT_GE(plan.nbytes, 32 * plan.bytes_per_token);
  EXPECT_GE(plan.committed_bytes, plan.nbytes);
  EXPECT_FALSE(plan.longest_context);
  EXPECT_FALSE(plan.most_users);
}

TEST(KvPlan, MeasuredCachesCommitWhatWasPredicted) {
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  for (const auto& model : {load_plain(), load_windowed()}) {
    const std::pair<int, int> wishes[] = {{1, 1}, {777, 1}, {200, 5}, {2048, 2}};
    for (const auto& [context, users] : wishes) {
      for (const KvFormat& format : kFormats) {
        if (!check_keys(format.k, model->info().head_dim_k).ok()) continue;
        const PlanParams params = {.context = context, .num_users = users, .batch = 128};
        const FormatPlan plan = plan_of(*model, format, params);
        const Result<MeasuredCache> measured =
            measure_cache(*model, {.format = format}, params, backend);
        ASSERT_TRUE(measured.ok()) << measured.status().to_string();
        EXPECT_EQ(measured->committed_bytes, plan.committed_bytes);
        EXPECT_EQ(measured->nbytes, plan.nbytes);
        EXPECT_EQ(measured->num_tokens, plan.num_tokens);
        EXPECT_GT(measured->resident_bytes, 0);
      }
    }
  }
}

TEST(KvPlan, CountsExactRowsAndWideLayersToTheByte) {
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  for (const auto& model : {load_plain(), load_windowed()}) {
    ModelCacheOptions options = {.format = {KvCode::q8, KvCode::q4}};
    const PlanParams params = {
        .context = 777, .num_users = 3, .batch = 128, .memory_bytes = int64_t{1} << 30};
    const FormatPlan packed = plan_cache(*model, options, params).value();
    EXPECT_EQ(packed.exact_bytes, 0);
    options.protection = {.wide_layers = {0}, .exact_first = 4, .exact_recent = 64};
    const FormatPlan plan = plan_cache(*model, options, params).value();
    const KvSpec f16 = model->kv_spec({});
    EXPECT_EQ(plan.layers[0].k, token_bytes_k(f16, 0));
    EXPECT_EQ(plan.layers[1].k, packed.layers[1].k);
    EXPECT_EQ(
        plan.bytes_per_token - packed.bytes_per_token,
        token_bytes_k(f16, 0) + token_bytes_v(f16, 0) - packed.layers[0].k - packed.layers[0].v);
    EXPECT_GT(plan.exact_bytes, 0);
    EXPECT_LT(*plan.most_users, *packed.most_users);
    const MeasuredCache measured = measure_cache(*model, options, params, backend).value();
    EXPECT_EQ(measured.committed_bytes, plan.committed_bytes);
    EXPECT_EQ(measured.nbytes, plan.nbytes);
  }
}

TEST(KvPlan, LayersWithAWindowStopGrowing) {
  const auto model = load_windowed();
  ASSERT_EQ(model->info().groups.size(), 2);
  const KvFormat f16;
  const FormatPlan near = plan_of(*model, f16, {.context = 16384});
  const FormatPlan far = plan_of(*model, f16, {.context = 65536});
  EXPECT_LT(near.growing_bytes_per_token, near.bytes_per_token);
  EXPECT_GT(near.growing_bytes_per_token, 0);
  const int64_t grown = far.committed_bytes - near.committed_bytes;
  EXPECT_NEAR(static_cast<double>(grown),
              static_cast<double>(near.growing_bytes_per_token * (65536 - 16384)),
              0.05 * static_cast<double>(grown));
}

TEST(KvPlan, TheLongestContextFitsAndABlockMoreDoesNot) {
  for (const auto& model : {load_plain(), load_windowed()}) {
    for (const int users : {1, 3}) {
      const int64_t memory = 50'000'000;
      PlanParams params = {.context = 100, .num_users = users, .memory_bytes = memory};
      const FormatPlan plan = plan_of(*model, {}, params);
      ASSERT_TRUE(plan.longest_context);
      EXPECT_EQ(*plan.longest_context % 16, 0);
      params.context = static_cast<int>(*plan.longest_context);
      EXPECT_LE(plan_of(*model, {}, params).committed_bytes, memory);
      params.context += 16;
      EXPECT_GT(plan_of(*model, {}, params).committed_bytes, memory);
    }
  }
}

TEST(KvPlan, TheMostUsersFitAndOneMoreDoesNot) {
  for (const auto& model : {load_plain(), load_windowed()}) {
    const int64_t memory = 30'000'000;
    PlanParams params = {.context = 700, .memory_bytes = memory};
    const FormatPlan plan = plan_of(*model, {}, params);
    ASSERT_TRUE(plan.most_users);
    ASSERT_GT(*plan.most_users, 1);
    params.num_users = static_cast<int>(*plan.most_users);
    EXPECT_LE(plan_of(*model, {}, params).committed_bytes, memory);
    ++params.num_users;
    EXPECT_GT(plan_of(*model, {}, params).committed_bytes, memory);
  }
}

TEST(KvPlan, NothingFitsInNoMemory) {
  const FormatPlan plan = plan_of(*load_plain(), {}, {.context = 10, .memory_bytes = 1000});
  EXPECT_FALSE(plan.longest_context);
  EXPECT_EQ(plan.most_users, 0);
}

TEST(KvPlan, CountsMemoryThatNoMachineHas) {
  const FormatPlan plan = plan_of(*load_plain(), {}, {.context = 1 << 20, .num_users = 200});
  EXPECT_EQ(plan.num_tokens, int64_t{200} << 20);
  EXPECT_GE(plan.committed_bytes, plan.num_tokens * plan.bytes_per_token);
}

TEST(KvPlan, StopsLookingAtTheMostTokensThatAPlanCounts) {
  PlanParams params = {.context = 4090, .memory_bytes = int64_t{1} << 61};
  const FormatPlan plan = plan_of(*load_plain(), {}, params);
  EXPECT_EQ(plan.longest_context, kMaxPlannedTokens);
  EXPECT_EQ(plan.most_users, kMaxPlannedTokens / 4096);
}

TEST(KvPlan, RefusesWhatIsNoPlan) {
  const auto message = [](const PlanParams& params) {
    return plan_cache(*load_plain(), {}, params).status().message();
  };
  EXPECT_THAT(message({.context = 0}), HasSubstr("at least 1"));
  EXPECT_THAT(message({.num_users = 0}), HasSubstr("at least 1"));
  EXPECT_THAT(message({.batch = 0}), HasSubstr("at least 1"));
  EXPECT_THAT(message({.context = 1 << 20, .num_users = 1 << 20}), HasSubstr("more than"));
  EXPECT_EQ(plan_cache(*load_plain(), {.block_size = 0}, {.context = 10}).status().code(),
            StatusCode::invalid_argument);
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  const Result<MeasuredCache> huge =
      measure_cache(*load_plain(), {}, {.context = 1 << 28}, backend);
  EXPECT_EQ(huge.status().code(), StatusCode::out_of_memory);
}

}  // namespace
}  // namespace kvik
