// Settings of a model file: computed, known to change nothing, or refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "kvik/model/model_runner.h"
#include "support/tiny_gemma.h"
#include "support/tiny_model.h"

namespace kvik {
namespace {

using test::tiny_gemma;
using test::tiny_tokens;
using test::TinyModel;
using test::TinySettings;
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

// The last logits are those of plain loops in double.
void expect_computed(TinyModel& tiny, const TinySettings& settings) {
  const std::vector<TokenId> tokens = tiny_tokens(3, 40);
  const Result<std::shared_ptr<const Model>> model = tiny.load();
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<float> logits = last_logits(*model, tokens);
  const std::vector<double> expected = tiny.logits(tokens, settings).back();
  for (size_t i = 0; i < logits.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(logits[i]), expected[i], 1e-3) << i;
  }
}

TEST(ModelSettings, AScaleOfScoresIsComputed) {
  TinyModel tiny;
  tiny.more_metadata = [](auto& w) { w.add_f32("llama.attention.scale", 0.05F); };
  expect_computed(tiny, {.attention_scale = double{0.05F}});
}

TEST(ModelSettings, ACapOfScoresIsComputed) {
  TinyModel tiny;
  tiny.more_metadata = [](auto& w) { w.add_f32("llama.attn_logit_softcapping", 0.25F); };
  expect_computed(tiny, {.attention_softcap = 0.25});
}

TEST(ModelSettings, ACapOfLogitsIsComputed) {
  TinyModel tiny;
  tiny.more_metadata = [](auto& w) { w.add_f32("llama.final_logit_softcapping", 0.5F); };
  expect_computed(tiny, {.logit_softcap = 0.5});
}

TEST(ModelSettings, AWindowOfSomeLayersOfLlamaIsComputed) {
  TinyModel tiny(TinyShape{.num_layers = 3});
  tiny.more_metadata = [](testing::GgufWriter& w) {
    w.add_u32("llama.attention.sliding_window", 7);
    w.add_array<uint8_t>("llama.attention.sliding_window_pattern", GgufType::boolean, {0, 1, 0});
  };
  expect_computed(tiny, {.window = 7, .has_window = {false, true, false}});
}

TEST(ModelSettings, AllTogetherAreComputed) {
  TinyModel tiny;
  tiny.more_metadata = [](testing::GgufWriter& w) {
    w.add_f32("llama.attention.scale", 0.5F);
    w.add_f32("llama.attn_logit_softcapping", 2);
    w.add_f32("llama.final_logit_softcapping", 3);
    w.add_u32("llama.attention.sliding_window", 9);
  };
  expect_computed(
      tiny, {.attention_scale = 0.5, .attention_softcap = 2, .logit_softcap = 3, .window = 9});
}

// Of gemma3: the file's flags or number say which layers see the window and turn by its rope.
TEST(ModelSettings, AnotherPatternOfWindowsIsComputed) {
  const TinyShape shape{.num_layers = 4, .rope_base = 1e6, .rope_factor = 8};
  const auto with_window = [](testing::GgufWriter& w) {
    w.add_u32("gemma3.attention.sliding_window", 6);
  };
  constexpr const char* kPattern = "gemma3.attention.sliding_window_pattern";
  TinyModel flags = tiny_gemma(shape, 6);
  flags.more_metadata = [&](testing::GgufWriter& w) {
    with_window(w);
    w.add_array<uint8_t>(kPattern, GgufType::boolean, {1, 0, 0, 1});
  };
  expect_computed(flags, {.window = 6, .has_window = {true, false, false, true}});
  TinyModel every_second = tiny_gemma(shape, 6);
  every_second.more_metadata = [&](testing::GgufWriter& w) {
    with_window(w);
    w.add_u32(kPattern, 2);
  };
  expect_computed(every_second, {.window = 6, .has_window = {true, false, true, false}});
  TinyModel none_said = tiny_gemma(shape, 6);  // the sixth layer would be the first without
  expect_computed(none_said, {.window = 6});
}

TEST(ModelSettings, BiasesOfAttentionOfLlamaAreComputedWhereTheyAre) {
  TinyModel tiny;
  uint64_t seed = 99;
  const std::pair<const char*, int> biases[] = {{"blk.0.attn_q.bias", 32},
                                                {"blk.0.attn_k.bias", 16},
                                                {"blk.0.attn_v.bias", 16},
                                                {"blk.0.attn_output.bias", 32},
                                                {"blk.1.attn_v.bias", 16}};
  for (const auto& [name, size] : biases) {
    const std::vector<float> values = test::bell(++seed, size);
    testing::TensorSpec spec;
    spec.name = name;
    spec.shape = {static_cast<uint64_t>(size)};
    spec.data.resize(values.size() * sizeof(float));
    std::memcpy(spec.data.data(), values.data(), spec.data.size());
    tiny.tensors()[name] = std::move(spec);
  }
  expect_computed(tiny, {});
  TinyModel wrong;
  wrong.tensors()["blk.0.attn_q.bias"] = tiny.tensors()["blk.0.attn_k.bias"];
  wrong.tensors()["blk.0.attn_q.bias"].name = "blk.0.attn_q.bias";
  EXPECT_THAT(wrong.load().status().message(), HasSubstr("blk.0.attn_q.bias"));
}

TEST(ModelSettings, NumbersPerLayerAreTakenWhereTheyAreEqual) {
  const std::vector<TokenId> tokens = tiny_tokens(1, 20);
  TinyModel plain;
  const std::vector<float> expected = last_logits(plain.load().value(), tokens);
  const std::pair<const char*, uint32_t> numbers[] = {
      {"feed_forward_length", 48}, {"attention.head_count", 4}, {"attention.head_count_kv", 2}};
  for (const auto& [suffix, number] : numbers) {
    const std::string key = std::string("llama.") + suffix;
    const auto load = [&, name = std::string(suffix)](const std::vector<uint32_t>& values) {
      auto tiny = std::make_unique<TinyModel>();
      tiny->arrays_instead[name] = values;
      Result<std::shared_ptr<const Model>> model = tiny->load();
      if (model.ok()) {
        EXPECT_EQ(last_logits(*model, tokens), expected) << key;
      }
      return model.status();
    };
    EXPECT_TRUE(load({number, number}).ok()) << key;
    const Status unequal = load({number, number / 2});
    EXPECT_EQ(unequal.code(), StatusCode::unsupported) << key;
    EXPECT_THAT(unequal.message(), AllOf(HasSubstr(key), HasSubstr(std::to_string(number / 2))));
    const Status short_list = load({number});
    EXPECT_EQ(short_list.code(), StatusCode::corrupt) << key;
    EXPECT_THAT(short_list.message(), AllOf(HasSubstr(key), HasSubstr("1 values for 2 layers")));
  }
}

TEST(ModelSettings, EveryKindOfFileThatIsNoModelIsRefusedByItsKind) {
  const std::pair<const char*, const char*> kinds[] = {
      {"adapter", "LoRA"},
      {"mmproj", "image part"},
      {"imatrix", "importance matrix"},
      {"vocab", "vocabulary without a model"},
      {"control_vector", "control vector"},
      {"something_new", "give the file of the model itself"}};
  for (const auto& [kind, says] : kinds) {
    const std::string name = kind;
    const Status status = load_status([&](auto& w) { w.add_string("general.type", name); });
    EXPECT_EQ(status.code(), StatusCode::unsupported) << kind;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("\"general.type\" is \"" + name + "\""), HasSubstr(says)));
  }
  EXPECT_TRUE(load_status([](auto& w) { w.add_string("general.type", "model"); }).ok());
  EXPECT_FALSE(load_status([](auto& w) { w.add_u32("general.type", 1); }).ok());
}

TEST(ModelSettings, OfTheTokenizerThatWouldChangeTokensAreRefusedByName) {
  const char* const flags[] = {"add_sep_token", "remove_extra_whitespaces", "normalizer.lowercase",
                               "normalizer.strip_accents", "add_space_prefix"};
  for (const char* flag : flags) {
    const std::string key = std::string("tokenizer.ggml.") + flag;
    const Status status = load_status([&](auto& w) { w.add_bool(key, true); });
    EXPECT_EQ(status.code(), StatusCode::unsupported) << key;
    EXPECT_THAT(status.message(), HasSubstr("\"" + key + "\" is true"));
    EXPECT_TRUE(load_status([&](auto& w) { w.add_bool(key, false); }).ok()) << key;
    EXPECT_THAT(load_status([&](auto& w) { w.add_string(key, "x"); }).message(), HasSubstr(key));
  }
  for (const char* name : {"precompiled_charsmap", "suppress_tokens", "some_new_setting"}) {
    const std::string key = std::string("tokenizer.ggml.") + name;
    const auto with = [&](const std::vector<uint8_t>& values) {
      return load_status(
          [&](auto& w) { w.template add_array<uint8_t>(key, GgufType::u8, values); });
    };
    EXPECT_EQ(with({1, 2}).code(), StatusCode::unsupported) << key;
    EXPECT_THAT(with({1, 2}).message(), HasSubstr("\"" + key + "\"")) << key;
    EXPECT_TRUE(with({}).ok()) << key;
  }
  EXPECT_TRUE(load_status([](auto& w) {
                w.add_u32("tokenizer.ggml.padding_token_id", 3);
                w.add_u32("tokenizer.ggml.fim_pre_token_id", 3);
              }).ok());
}

// Of architectures whose files do not say which layers have it.
TEST(ModelSettings, AWindowThatIsNotComputedBoundsTheContext) {
  const auto qwen3 = [](TinyModel& tiny, uint32_t window) {
    const TinyModel gemma = tiny_gemma(tiny.shape(), 1);
    for (const auto& [name, spec] : const_cast<TinyModel&>(gemma).tensors()) {
      if (name.find("_norm") != std::string::npos && name.find("post_") == std::string::npos) {
        tiny.tensors()[name] = spec;
      }
    }
    tiny.architecture = "qwen3";
    tiny.more_metadata = [window](testing::GgufWriter& w) {
      w.add_u32("qwen3.attention.sliding_window", window);
    };
    return tiny.load();
  };
  TinyModel narrow, at_context;
  EXPECT_THAT(qwen3(narrow, 255).status().message(),
              AllOf(HasSubstr("\"qwen3.attention.sliding_window\" is 255"), HasSubstr("256")));
  const std::shared_ptr<const Model> model = qwen3(at_context, 256).value();
  EXPECT_EQ(model->info().max_context, 256);
  ModelCacheOptions options;
  options.max_tokens = 256;
  EXPECT_TRUE(model->cache_options(options).ok());
  options.max_tokens = 257;
  const Status status = model->cache_options(options).status();
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("257 tokens"), HasSubstr("256 tokens or fewer"),
                                      HasSubstr("qwen3.attention.sliding_window")));
  // Older tokens are out of sight before the window ends.
  options.window = 200;
  EXPECT_TRUE(model->cache_options(options).ok());
  // Caches of several sequences may have room for more; one sequence may not take it.
  options.window.reset();
  options.max_sequences = 2;
  options.max_tokens = 512;
  options.format = {KvCode::f32, KvCode::f32};
  const std::unique_ptr<ModelRunner> runner = ModelRunner::create(model).value();
  CacheSet caches = runner->make_caches(options).value();
  Sequence sequence = caches.new_sequence();
  const auto feed = [&](int count) {
    const std::vector<TokenId> tokens = tiny_tokens(1, count);
    const SequenceTokens step{&sequence, tokens};
    return runner->forward(caches, {&step, 1});
  };
  EXPECT_TRUE(feed(255).ok());
  EXPECT_EQ(feed(2).code(), StatusCode::unsupported);
  EXPECT_TRUE(feed(1).ok());
  EXPECT_EQ(feed(1).code(), StatusCode::unsupported);
}

}  // namespace
}  // namespace kvik
