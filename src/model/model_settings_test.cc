// Settings of a model file: computed, known to change nothing, or refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "kvik/model/model_runner.h"
#include "support/tiny_model.h"

namespace kvik {
namespace {

using test::tiny_tokens;
using test::TinyModel;
using test::TinyShape;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Change = std::function<void(testing::GgufWriter&)>;

std::vector<float> last_logits(const std::shared_ptr<const Model>& model,
                               const std::vector<TokenId>& tokens) {
  const std::unique_ptr<ModelRunner> runner = ModelRunner::create(model).value();
  ModelCacheOptions options;
  options.format = {KvCode::f32, KvCode::f32};
  CacheSet caches = runner->make_caches(options).value();
  Sequence sequence = caches.new_sequence();
  const SequenceTokens step{&sequence, tokens};
  EXPECT_TRUE(runner->forward(caches, {&step, 1}).ok());
  std::vector<float> logits(static_cast<size_t>(model->info().vocab_size));
  runner->logits(static_cast<int>(tokens.size()) - 1, 1, logits);
  return logits;
}

Status load_status(const Change& change) {
  TinyModel tiny;
  tiny.more_metadata = change;
  return tiny.load().status();
}

TEST(ModelSettings, ThatWouldChangeResultsAreRefusedWithKeyAndValue) {
  const std::pair<const char*, float> numbers[] = {{"logit_scale", 0.1F},
                                                   {"residual_scale", 0.2F},
                                                   {"embedding_scale", 12},
                                                   {"attention.clamp_kqv", 0.1F},
                                                   {"attention.max_alibi_bias", 8},
                                                   {"attention.output_scale", 0.5F},
                                                   {"attention.temperature_scale", 0.1F},
                                                   {"rope.scaling.attn_factor", 2},
                                                   {"rope.freq_base_swa", 5},
                                                   {"rope.scaling.yarn_ext_factor", 1},
                                                   {"expert_weights_scale", 2.5F},
                                                   {"some.new_setting", 0}};
  for (const auto& number : numbers) {
    const std::string key = std::string("llama.") + number.first;
    const Status status =
        load_status([&](testing::GgufWriter& w) { w.add_f32(key, number.second); });
    EXPECT_EQ(status.code(), StatusCode::unsupported) << key;
    EXPECT_THAT(status.message(), HasSubstr("\"" + key + "\" is ")) << key;
  }
  EXPECT_THAT(load_status([](auto& w) { w.add_bool("llama.attention.causal", false); }).message(),
              HasSubstr("\"llama.attention.causal\" is false"));
  EXPECT_THAT(
      load_status([](auto& w) {
        w.template add_array<int32_t>("llama.rope.dimension_sections", GgufType::i32, {4, 2, 2, 0});
      }).message(),
      HasSubstr("[4, 2, 2, 0]"));
  EXPECT_EQ(load_status([](auto& w) { w.add_u32("llama.vocab_size", 5); }).code(),
            StatusCode::corrupt);
  EXPECT_THAT(load_status([](auto& w) { w.add_string("general.type", "adapter"); }).message(),
              AllOf(HasSubstr("general.type"), HasSubstr("adapter")));
  EXPECT_THAT(load_status([](auto& w) { w.add_u32("general.quantization_version", 1); }).message(),
              HasSubstr("general.quantization_version"));
}

TEST(ModelSettings, ThatSayNoneOrNothingGiveTheSameLogits) {
  TinyModel plain;
  const std::vector<TokenId> tokens = tiny_tokens(1, 20);
  const std::vector<float> expected = last_logits(plain.load().value(), tokens);
  TinyModel tiny;
  tiny.more_metadata = [&](testing::GgufWriter& w) {
    w.add_bool("llama.attention.causal", true);
    w.add_f32("llama.attention.scale", 0);
    w.add_f32("llama.attn_logit_softcapping", 0);
    w.add_f32("llama.final_logit_softcapping", 0);
    w.add_u32("llama.attention.sliding_window", 0);
    w.add_f32("llama.logit_scale", 1);
    w.add_f32("llama.residual_scale", 0);
    w.add_f32("llama.attention.clamp_kqv", 0);
    w.add_u32("llama.expert_count", 0);
    w.add_u32("llama.expert_used_count", 0);
    w.add_u32("llama.vocab_size", static_cast<uint32_t>(plain.shape().vocab_size()));
    w.add_string("llama.tensor_data_layout", "Meta AI original pth");
    w.add_bool("llama.use_parallel_residual", false);
    w.add_string("llama.rope.scaling.type", "none");
    w.add_f32("llama.rope.scaling.factor", 4);
    w.add_bool("llama.rope.scaling.finetuned", true);
    w.add_f32("llama.attention.layer_norm_epsilon", 1);
    w.add_u32("llama.pooling_type", 3);
    w.add_f32("another.logit_scale", 3);
    w.add_u32("general.quantization_version", 2);
  };
  const Result<std::shared_ptr<const Model>> model = tiny.load();
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(last_logits(*model, tokens), expected);
}

TEST(ModelSettings, AWindowOfLlamaHoldsForAllLayersOrByThePattern) {
  const std::vector<TokenId> tokens = tiny_tokens(2, 40);
  TinyModel tiny;
  tiny.more_metadata = [](testing::GgufWriter& w) {
    w.add_u32("llama.attention.sliding_window", 7);
  };
  const std::shared_ptr<const Model> model = tiny.load().value();
  ASSERT_EQ(model->info().groups.size(), 1U);
  EXPECT_EQ(model->info().groups[0].window, 7);
  const std::vector<float> logits = last_logits(model, tokens);
  const std::vector<double> expected = tiny.logits(tokens, 7).back();
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(logits[i]), expected[i], 1e-3) << i;
  }
  TinyModel pattern;
  pattern.more_metadata = [](testing::GgufWriter& w) {
    w.add_u32("llama.attention.sliding_window", 7);
    w.add_array<uint8_t>("llama.attention.sliding_window_pattern", GgufType::boolean, {0, 1});
  };
  const std::shared_ptr<const Model> mixed = pattern.load().value();
  ASSERT_EQ(mixed->info().groups.size(), 2U);
  EXPECT_EQ(mixed->info().groups[0].layers, std::vector<int>{0});
  EXPECT_FALSE(mixed->info().groups[0].window);
  EXPECT_EQ(mixed->info().groups[1].layers, std::vector<int>{1});
}

TEST(ModelSettings, ACapOfLogitsAndAScaleOfScoresAreComputed) {
  const std::vector<TokenId> tokens = tiny_tokens(3, 20);
  TinyModel plain;
  const std::vector<float> free = last_logits(plain.load().value(), tokens);
  TinyModel capped;
  capped.more_metadata = [](auto& w) { w.add_f32("llama.final_logit_softcapping", 0.5F); };
  const std::vector<float> logits = last_logits(capped.load().value(), tokens);
  for (size_t i = 0; i < free.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(logits[i]), 0.5 * std::tanh(double{free[i]} / 0.5), 1e-6);
  }
  // The default said outright, and another one.
  TinyModel same;
  same.more_metadata = [](auto& w) {
    w.add_f32("llama.attention.scale", static_cast<float>(1 / std::sqrt(8.0)));
  };
  EXPECT_EQ(last_logits(same.load().value(), tokens), free);
  for (const char* key : {"llama.attention.scale", "llama.attn_logit_softcapping"}) {
    TinyModel other;
    other.more_metadata = [key](auto& w) { w.add_f32(key, 0.05F); };
    EXPECT_NE(last_logits(other.load().value(), tokens), free) << key;
  }
}

TEST(ModelSettings, NumbersPerLayerAreTakenWhereTheyAreEqual) {
  const auto with_heads = [](const std::vector<uint32_t>& heads) {
    TinyModel tiny;
    tiny.integers_changed["attention.head_count_kv"] = 2;
    tiny.more_metadata = [heads](testing::GgufWriter& w) {
      w.add_array<uint32_t>("llama.attention.sliding_window_pattern", GgufType::u32, heads);
    };
    return tiny.load().status();
  };
  EXPECT_TRUE(with_heads({1, 1}).ok());
  EXPECT_THAT(with_heads({1, 1, 1}).message(), HasSubstr("3 values for 2 layers"));
}

}  // namespace
}  // namespace kvik
