#include "kvik/model/model.h"
#include "kvik/backend/cpu_backend.h"
#include "kvik/cache/cache_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/tiny_model.h"

namespace kvik {
namespace {

using test::TinyModel;
using test::TinyShape;
using ::testing::AllOf;
using ::testing::HasSubstr;

void expect_refused(TinyModel& model, StatusCode code, const std::string& first,
                    const std::string& second = "") {
  const Result<std::shared_ptr<const Model>> loaded = model.load();
  ASSERT_FALSE(loaded.ok()) << first;
  EXPECT_EQ(loaded.status().code(), code) << loaded.status().to_string();
  EXPECT_THAT(loaded.status().message(), AllOf(HasSubstr(first), HasSubstr(second)));
}

void set_float(testing::TensorSpec& spec, size_t index, float value) {
  std::memcpy(spec.data.data() + index * sizeof value, &value, sizeof value);
}

TEST(Model, SaysWhatTheFileHolds) {
  TinyModel tiny;
  const std::shared_ptr<const Model> model = tiny.load().value();
  const ModelInfo& info = model->info();
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.num_layers, 2);
  EXPECT_EQ(info.num_heads, 4);
  EXPECT_EQ(info.num_kv_heads, 2);
  EXPECT_EQ(info.head_dim_k, 8);
  EXPECT_EQ(info.vocab_size, tiny.shape().vocab_size());
  EXPECT_EQ(info.weight_bytes, info.num_parameters * 4);
  EXPECT_TRUE(info.tied_embeddings);
  EXPECT_EQ(info.end_tokens, std::vector<TokenId>{257});
  EXPECT_TRUE(model->is_end_token(257));
  EXPECT_FALSE(model->is_end_token(256));
  EXPECT_EQ(model->chat_template().status().code(), StatusCode::unsupported);
  EXPECT_EQ(model->kv_spec({}).num_layers(), 2);
}

TEST(Model, MakesCacheOptionsOrNamesWhatIsWrong) {
  TinyModel tiny;
  const std::shared_ptr<const Model> model = tiny.load().value();
  const auto options = model->cache_options({.block_size = 32, .max_tokens = 100}).value();
  ASSERT_EQ(options.size(), 1U);
  EXPECT_EQ(options[0].max_blocks, 4);
  EXPECT_THAT(model->cache_options({.block_size = 24}).status().message(), HasSubstr("block"));
  EXPECT_FALSE(options[0].window);
  // A window bounds the blocks, whatever max_tokens says: what it sees, the rollback slack, a
  // batch.
  const auto rolling =
      model->cache_options({.max_tokens = 4096, .window = 100, .max_batch_tokens = 60}).value();
  EXPECT_EQ(rolling[0].window, 100);
  EXPECT_EQ(rolling[0].max_blocks, (100 + 64 + 60) / 16 + 2);
  EXPECT_THAT(model->cache_options({.contiguous = true, .window = 9}).status().message(),
              HasSubstr("contiguous"));
  EXPECT_THAT(model->cache_options({.max_tokens = 0}).status().message(), HasSubstr("at least 1"));
}

TEST(Model, NamesAMissingTensor) {
  for (const char* name : {"token_embd.weight", "blk.1.attn_k.weight", "output_norm.weight"}) {
    TinyModel tiny;
    tiny.tensors().erase(name);
    expect_refused(tiny, StatusCode::corrupt, name, "no tensor");
  }
}

TEST(Model, NamesBothShapesOfATensorThatDoesNotFit) {
  TinyModel tiny;
  tiny.tensors()["blk.0.attn_q.weight"].shape = {16, 64};
  expect_refused(tiny, StatusCode::corrupt, "\"blk.0.attn_q.weight\" has shape [16, 64]",
                 "[32, 32]");
  TinyModel norm;
  norm.tensors()["output_norm.weight"].shape = {16, 2};
  expect_refused(norm, StatusCode::corrupt, "\"output_norm.weight\" has shape [16, 2]", "[32]");
}

TEST(Model, RefusesWeightsThatAreNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    TinyModel tiny;
    set_float(tiny.tensors()["blk.1.ffn_up.weight"], 32 * 5 + 3, bad);
    expect_refused(tiny, StatusCode::corrupt, "blk.1.ffn_up.weight", "row 5");
  }
}

TEST(Model, NamesAnArchitectureThatItDoesNotKnow) {
  TinyModel tiny;
  tiny.architecture = "mamba";
  expect_refused(tiny, StatusCode::unsupported, "\"mamba\"", "llama");
}

TEST(Model, NamesTheKindOfLayersThatItDoesNotCompute) {
  const std::pair<const char*, const char*> kinds[] = {{"expert_count", "mixture of experts"},
                                                       {"attention.kv_lora_rank", "MLA"},
                                                       {"ssm.state_size", "recurrent"},
                                                       {"wkv.head_size", "recurrent"}};
  for (const char* architecture : {"llama", "another"}) {
    for (const auto& kind : kinds) {
      TinyModel tiny;
      tiny.architecture = architecture;
      const std::string key = std::string(architecture) + "." + kind.first;
      tiny.more_metadata = [key](testing::GgufWriter& writer) { writer.add_u32(key, 8); };
      expect_refused(tiny, StatusCode::unsupported, kind.second, architecture);
    }
  }
  // No experts are no experts.
  TinyModel dense;
  dense.more_metadata = [](testing::GgufWriter& writer) {
    writer.add_u32("llama.expert_count", 0);
  };
  EXPECT_TRUE(dense.load().ok());
}

TEST(Model, RefusesATensorThatItWouldIgnore) {
  TinyModel tiny;
  testing::TensorSpec bias = tiny.tensors()["blk.0.attn_norm.weight"];
  bias.name = "blk.0.ffn_up.bias";
  tiny.tensors()[bias.name] = bias;
  expect_refused(tiny, StatusCode::unsupported, "blk.0.ffn_up.bias");
}

TEST(Model, RefusesAbsurdHyperparameters) {
  const std::pair<const char*, uint32_t> cases[] = {{"block_count", 0},
                                                    {"block_count", 4000000000},
                                                    {"embedding_length", 0},
                                                    {"embedding_length", 1U << 30},
                                                    {"context_length", 0},
                                                    {"feed_forward_length", 4000000000},
                                                    {"attention.head_count", 0},
                                                    {"attention.head_count", 1000000},
                                                    {"attention.head_count_kv", 0},
                                                    {"attention.head_count_kv", 8},
                                                    {"attention.key_length", 577},
                                                    {"rope.dimension_count", 10}};
  for (const auto& [key, value] : cases) {
    TinyModel tiny;
    tiny.integers_changed[key] = value;
    expect_refused(tiny, StatusCode::corrupt, key, std::to_string(value));
  }
  TinyModel odd;
  odd.integers_changed["attention.head_count_kv"] = 3;
  expect_refused(odd, StatusCode::corrupt, "4 query heads", "3 KV heads");
  // More layers than the file has tensors for.
  TinyModel layers;
  layers.integers_changed["block_count"] = 9999;
  expect_refused(layers, StatusCode::corrupt, "blk.2.attn_norm.weight");
}

TEST(Model, RefusesAnUnknownRopeScalingByName) {
  TinyModel tiny;
  tiny.more_metadata = [](testing::GgufWriter& writer) {
    writer.add_string("llama.rope.scaling.type", "longrope");
  };
  expect_refused(tiny, StatusCode::unsupported, "\"longrope\"");
}

TEST(Model, RefusesRopeFactorsThatAreNotAboveZero) {
  TinyModel tiny(TinyShape{.has_rope_factors = true});
  set_float(tiny.tensors()["rope_freqs.weight"], 1, 0.0f);
  expect_refused(tiny, StatusCode::corrupt, "rope_freqs.weight");
}

TEST(Model, RefusesAVocabularyOfAnotherSizeThanTheEmbedding) {
  TinyModel tiny;
  tiny.tensors()["token_embd.weight"].shape[1] -= 1;
  tiny.tensors()["token_embd.weight"].data.resize(tiny.tensors()["token_embd.weight"].data.size() -
                                                  32 * 4);
  expect_refused(tiny, StatusCode::corrupt, "token_embd.weight");
}

TEST(Model, KeepsAChatTemplateThatItCannotRenderAsAnError) {
  TinyModel tiny;
  tiny.more_metadata = [](testing::GgufWriter& writer) {
    writer.add_string("tokenizer.chat_template", "{% macro a( %}{% endmacro %}");
  };
  const std::shared_ptr<const Model> model = tiny.load().value();
  EXPECT_EQ(model->chat_template().status().code(), StatusCode::corrupt);
  EXPECT_THAT(model->chat_template().status().message(), HasSubstr("line 1, column 14"));
}

TEST(LargestContext, IsTheMostWholeBlocksThatFit) {
  test::TinyModel tiny({.head_dim = 32, .rope_dim = 32});
  const std::shared_ptr<const Model> model = tiny.load().value();
  for (const KvFormat& format : {KvFormat{}, KvFormat{KvCode::q8, KvCode::q8}}) {
    ModelCacheOptions options;
    options.format = format;
    options.block_size = 32;
    options.max_tokens = 100000;
    const int64_t all = model->cache_bytes(options).value();
    EXPECT_EQ(model->largest_context(options, all).value(), 100000);
    EXPECT_EQ(model->largest_context(options, INT64_MAX).value(), 100000);
    for (const int64_t bytes : {all - 1, all / 2, all / 50}) {
      const int most = model->largest_context(options, bytes).value();
      ASSERT_GT(most, 0);
      EXPECT_EQ(most % 32, 0);
      options.max_tokens = most;
      EXPECT_LE(model->cache_bytes(options).value(), bytes);
      options.max_tokens = most + 1;
      EXPECT_GT(model->cache_bytes(options).value(), bytes);
      options.max_tokens = 100000;
    }
    EXPECT_EQ(model->largest_context(options, 0).value(), 0);
  }
}

TEST(CacheBytes, BoundWhatFullCachesCommit) {
  test::TinyModel tiny({.num_layers = 3, .head_dim = 32, .rope_dim = 32});
  const std::shared_ptr<const Model> model = tiny.load().value();
  const std::shared_ptr<Backend> backend = make_cpu_backend({}).value();
  for (const KvFormat format : {KvFormat{}, KvFormat{KvCode::tq4, KvCode::tcq3}}) {
    ModelCacheOptions options;
    options.format = format;
    options.max_tokens = 3000;
    options.protection = {.wide_layers = {1}, .exact_first = 4, .exact_recent = 100};
    const int64_t bound = model->cache_bytes(options).value();
    CacheSet caches = CacheSet::create(model->cache_options(options).value(), backend).value();
    Sequence sequence = caches.new_sequence();
    std::vector<float> rows(static_cast<size_t>(100 * 2 * 32), 0.5F);
    for (int done = 0; done < options.max_tokens; done += 100) {
      const AppendRequest request{&sequence, 100};
      SetPlan plan = caches.reserve({&request, 1}).value();
      for (int layer = 0; layer < 3; ++layer) {
        const ConstTensorView row(rows.data(), DType::f32, {100, 2, 32});
        caches.write(plan, 0, layer, row, row);
      }
      ASSERT_TRUE(caches.commit(std::move(plan)).ok());
    }
    const int64_t committed = caches.stats(0).committed_bytes;
    EXPECT_LE(committed, bound);
    EXPECT_GT(committed, bound / 2);
  }
}

}  // namespace
}  // namespace kvik
