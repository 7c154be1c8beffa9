#include "kvik/engine/key_calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <span>

#include "core/hash.h"
#include "support/tiny_model.h"

namespace kvik {
namespace {

using test::tiny_tokens;
using test::TinyModel;
using test::TinyShape;
using ::testing::HasSubstr;

constexpr int kTokens = 300;  // two frames of 128 and a part

std::vector<std::vector<TokenId>> tiny_texts() {
  return {tiny_tokens(3, kTokens), tiny_tokens(4, 40)};
}

// Rows of all layers as the model made them, [layer][text][token][head][dim].
struct Captured {
  std::vector<std::vector<std::vector<float>>> q, k;
};

Captured capture(const std::shared_ptr<const Model>& model) {
  const std::unique_ptr<ModelRunner> runner = ModelRunner::create(model, {}).value();
  Captured rows;
  rows.q.resize(static_cast<size_t>(model->info().num_layers));
  rows.k = rows.q;
  for (const std::vector<TokenId>& text : tiny_texts()) {
    CacheSet caches =
        runner->make_caches({.format = {KvCode::f32, KvCode::f32}, .max_tokens = 512}).value();
    Sequence sequence = caches.new_sequence();
    runner->set_row_hook([&](const LayerRows& of) {
      const auto layer = static_cast<size_t>(of.layer);
      for (const auto& [to, t] : {std::pair(&rows.q, of.q), std::pair(&rows.k, of.k)}) {
        const auto* data = reinterpret_cast<const float*>(t.data);
        (*to)[layer].emplace_back(data, data + t.dim(0) * t.dim(1) * t.dim(2));
      }
    });
    const SequenceTokens step{&sequence, text};
    EXPECT_TRUE(runner->forward(caches, {&step, 1}).ok());
  }
  return rows;
}

// Element d of a row turned back by `begin` positions, from the definition of RoPE.
double turned_back(const float* row, size_t d, double begin, const KeyRope& rope) {
  const size_t n = rope.frequencies.size();
  if (d >= 2 * n) return row[d];
  const bool is_halves = rope.pairs == KeyPairs::halves;
  const size_t pair = is_halves ? d % n : d / 2;
  const bool is_second = is_halves ? d >= n : d % 2 == 1;
  const double x = row[is_halves ? pair : 2 * pair];
  const double y = row[is_halves ? pair + n : 2 * pair + 1];
  const double angle = -begin * rope.frequencies[pair];
  return is_second ? x * std::sin(angle) + y * std::cos(angle)
                   : x * std::cos(angle) - y * std::sin(angle);
}

class Calibrate : public ::testing::TestWithParam<TinyShape> {};

TEST_P(Calibrate, MeasuresWhatTheDefinitionSays) {
  TinyModel tiny(GetParam());
  const std::shared_ptr<const Model> model = tiny.load().value();
  const ModelInfo& info = model->info();
  const std::unique_ptr<ModelRunner> runner =
      ModelRunner::create(model, {.max_batch_tokens = 64}).value();
  const std::vector<std::vector<TokenId>> texts = tiny_texts();
  const KeyCalibration got = calibrate_keys(*runner, texts, {}).value();
  ASSERT_TRUE(check(got, info.num_layers, info.num_kv_heads, info.head_dim_k).ok());
  EXPECT_EQ(got.frame, 128);

  const Captured rows = capture(model);
  const auto head_dim = static_cast<size_t>(info.head_dim_k);
  const auto group = static_cast<size_t>(info.num_heads / info.num_kv_heads);
  for (size_t layer = 0; layer < got.layers.size(); ++layer) {
    const KeyRope rope = model->key_rope(static_cast<int>(layer));
    for (size_t head = 0; head < static_cast<size_t>(info.num_kv_heads); ++head) {
      std::vector<double> mean(head_dim), var_k(head_dim), var_q(head_dim);
      double sum_k = 0, sum_q = 0;
      for (size_t d = 0; d < head_dim; ++d) {
        double k1 = 0, k2 = 0, q2 = 0, num_k = 0, num_q = 0;
        for (size_t t = 0; t < texts.size(); ++t) {
          for (size_t p = 0; p < texts[t].size(); ++p) {
            const float* k = rows.k[layer][t].data() +
                             (p * static_cast<size_t>(info.num_kv_heads) + head) * head_dim;
            if (p >= 4) {
              const double x = turned_back(k, d, static_cast<double>(p / 128 * 128), rope);
              k1 += x;
              k2 += x * x;
              ++num_k;
            }
            for (size_t h = head * group; h < (head + 1) * group; ++h) {
              const float* q = rows.q[layer][t].data() +
                               (p * static_cast<size_t>(info.num_heads) + h) * head_dim;
              for (const int begin : {0, 128, 256, -512, -2048, -8192, -16384}) {
                if (static_cast<int>(p) < begin) continue;
                const double x = turned_back(q, d, begin, rope);
                q2 += x * x;
                ++num_q;
              }
            }
          }
        }
        mean[d] = k1 / num_k;
        var_k[d] = k2 / num_k - mean[d] * mean[d];
        var_q[d] = q2 / num_q;
        sum_k += var_k[d];
        sum_q += var_q[d];
      }
      double scaled = 0;
      std::vector<double> a(head_dim);
      for (size_t d = 0; d < head_dim; ++d) {
        const double k = var_k[d] + 1e-4 * sum_k / static_cast<double>(head_dim);
        a[d] = std::pow((var_q[d] + 1e-4 * sum_q / static_cast<double>(head_dim)) / k, 0.25);
        scaled += a[d] * a[d] * k;
      }
      for (size_t d = 0; d < head_dim; ++d) {
        const size_t at = head * head_dim + d;
        EXPECT_NEAR(got.layers[layer].centre[at], mean[d], 1e-3 * std::abs(mean[d]) + 1e-5);
        const double expected = a[d] * std::sqrt(sum_k / scaled);
        EXPECT_NEAR(got.layers[layer].diagonal[at], expected, 2e-3 * expected)
            << "layer " << layer << " head " << head << " dim " << d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Calibrate,
                         ::testing::Values(TinyShape{}, TinyShape{.num_layers = 2,
                                                                  .num_heads = 6,
                                                                  .num_kv_heads = 3,
                                                                  .head_dim = 10,
                                                                  .rope_dim = 6}));

TEST(Calibration, RefusesWhatItCannotMeasure) {
  TinyModel tiny;
  const std::unique_ptr<ModelRunner> runner = ModelRunner::create(tiny.load().value()).value();
  const std::vector<std::vector<TokenId>> texts = tiny_texts();
  EXPECT_THAT(calibrate_keys(*runner, texts, {.frame = 100}).status().message(),
              HasSubstr("frame is 100"));
  EXPECT_EQ(calibrate_keys(*runner, {}).status().code(), StatusCode::invalid_argument);
  const std::vector<std::vector<TokenId>> with_empty = {texts[0], {}};
  EXPECT_THAT(calibrate_keys(*runner, with_empty).status().message(), HasSubstr("empty"));
  const CalibrationParams stops = {.on_progress = [](int, int) { return false; }};
  EXPECT_EQ(calibrate_keys(*runner, texts, stops).status().code(), StatusCode::cancelled);
}

class CalibrationFile : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = tiny_.load().value();
    const std::unique_ptr<ModelRunner> runner = ModelRunner::create(model_).value();
    made_ = calibrate_keys(*runner, tiny_texts(), {.frame = 256}).value();
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    path_ = (std::filesystem::path(::testing::TempDir()) / ("kvik_" + test + ".kvcal")).string();
    ASSERT_TRUE(save_calibration(made_, *model_, path_).ok());
    std::ifstream file(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }
  void TearDown() override { std::remove(path_.c_str()); }

  Status load(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    return load_calibration(*model_, path_).status();
  }

  TinyModel tiny_{TinyShape{}};
  std::shared_ptr<const Model> model_;
  KeyCalibration made_;
  std::string path_, bytes_;
};

TEST_F(CalibrationFile, GivesBackWhatWasSaved) {
  const KeyCalibration read = load_calibration(*model_, path_).value();
  EXPECT_EQ(read.frame, 256);
  ASSERT_EQ(read.layers.size(), made_.layers.size());
  for (size_t i = 0; i < made_.layers.size(); ++i) {
    EXPECT_EQ(read.layers[i].centre, made_.layers[i].centre);
    EXPECT_EQ(read.layers[i].diagonal, made_.layers[i].diagonal);
    EXPECT_EQ(read.layers[i].frequencies, made_.layers[i].frequencies);
    EXPECT_EQ(read.layers[i].pairs, made_.layers[i].pairs);
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(CalibrationFile, CutOrChangedAnywhereIsCorrupt) {
  for (size_t size = 0; size < bytes_.size(); ++size) {
    ASSERT_EQ(load(bytes_.substr(0, size)).code(), StatusCode::corrupt) << size;
  }
  for (size_t i = 0; i < bytes_.size(); ++i) {
    std::string changed = bytes_;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    ASSERT_EQ(load(changed).code(), StatusCode::corrupt) << i;
  }
  EXPECT_EQ(load(bytes_ + "x").code(), StatusCode::corrupt);
  EXPECT_TRUE(load(bytes_).ok());
}

// The file with one half of its numbers changed, and a checksum that fits.
std::string with_half(std::string bytes, size_t at, uint16_t half) {
  bytes[at] = static_cast<char>(half & 0xff);
  bytes[at + 1] = static_cast<char>(half >> 8);
  const size_t hashed = bytes.size() - sizeof(internal::Hash128);
  const internal::Hash128 sum = internal::hash_of(std::as_bytes(std::span(bytes.data(), hashed)));
  std::memcpy(bytes.data() + hashed, sum.data(), sum.size());
  return bytes;
}

TEST_F(CalibrationFile, NumbersThatCannotBeBehindAValidChecksumAreRefusedByName) {
  const ModelInfo& info = model_->info();
  const auto side = static_cast<size_t>(info.num_kv_heads * info.head_dim_k);  // halves of one
  const size_t header = bytes_.size() - 16 - static_cast<size_t>(info.num_layers) * side * 4;
  const auto original = static_cast<uint16_t>(static_cast<uint8_t>(bytes_[header]) |
                                              static_cast<uint8_t>(bytes_[header + 1]) << 8);
  ASSERT_EQ(with_half(bytes_, header, original), bytes_);  // this is the file's checksum
  struct Case {
    size_t half;  // of layer 1
    uint16_t bits;
    const char* field;
    const char* head;
  };
  for (const Case& c : {Case{0, 0x7e00, "centre", "KV head 0"},
                        {side - 1, 0x7c00, "centre", "KV head 1"},
                        {side, 0xfc00, "diagonal", "KV head 0"},
                        {2 * side - 1, 0x7e01, "diagonal", "KV head 1"},
                        {side + 1, 0x0000, "diagonal", "KV head 0"},
                        {side + 2, 0xbc00, "diagonal", "KV head 0"}}) {
    SCOPED_TRACE(std::to_string(c.half) + " " + c.field);
    const Status status = load(with_half(bytes_, header + side * 4 + c.half * 2, c.bits));
    EXPECT_EQ(status.code(), StatusCode::corrupt);
    EXPECT_THAT(status.message(), ::testing::AllOf(HasSubstr(path_), HasSubstr("layer 1"),
                                                   HasSubstr(c.head), HasSubstr(c.field)));
  }
  EXPECT_TRUE(load(bytes_).ok());
}

TEST_F(CalibrationFile, OfOtherWeightsIsRefused) {
  TinyModel other(TinyShape{});
  // The last value of a tensor, far behind its first bytes.
  std::vector<std::byte>& data = other.tensors()["blk.1.ffn_down.weight"].data;
  data[data.size() - 3] ^= std::byte{1};
  const std::shared_ptr<const Model> model = other.load().value();
  EXPECT_NE(model_fingerprint(*model).value(), model_fingerprint(*model_).value());
  const Status status = load_calibration(*model, path_).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_THAT(status.message(), ::testing::AllOf(HasSubstr(path_), HasSubstr("other weights")));
}

TEST_F(CalibrationFile, OfOtherSettingsIsRefusedWhateverTheSetting) {
  using Change = std::function<void(testing::GgufWriter&)>;
  const std::pair<const char*, Change> changes[] = {
      {"attention.scale", [](auto& w) { w.add_f32("llama.attention.scale", 0.25F); }},
      {"attn_logit_softcapping", [](auto& w) { w.add_f32("llama.attn_logit_softcapping", 30); }},
      {"final_logit_softcapping", [](auto& w) { w.add_f32("llama.final_logit_softcapping", 30); }},
      {"sliding_window", [](auto& w) { w.add_u32("llama.attention.sliding_window", 9); }},
      {"scale_linear", [](auto& w) { w.add_f32("llama.rope.scale_linear", 4); }},
      {"add_eos_token", [](auto& w) { w.add_bool("tokenizer.ggml.add_eos_token", true); }},
  };
  std::set<ModelFingerprint> fingerprints = {model_fingerprint(*model_).value()};
  const auto expect_refused = [&](TinyModel& other, const char* what) {
    const std::shared_ptr<const Model> model = other.load().value();
    EXPECT_TRUE(fingerprints.insert(model_fingerprint(*model).value()).second) << what;
    const Status status = load_calibration(*model, path_).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << what;
    EXPECT_THAT(status.message(), ::testing::AllOf(HasSubstr(path_), HasSubstr("other settings")))
        << what;
  };
  for (const auto& [what, change] : changes) {
    TinyModel other(TinyShape{});
    other.more_metadata = change;
    expect_refused(other, what);
  }
  TinyModel base(TinyShape{.rope_base = 1e6});
  expect_refused(base, "freq_base");
  TinyModel linear(TinyShape{.rope_factor = 8});
  expect_refused(linear, "scaling.factor");
  TinyModel turned(TinyShape{.rope_dim = 6});
  expect_refused(turned, "dimension_count");
}

TEST_F(CalibrationFile, StatesTheDefaultAndItIsTheSameModel) {
  TinyModel other(TinyShape{});
  other.more_metadata = [](testing::GgufWriter& w) {
    w.add_f32("llama.attention.scale", 0);
    w.add_string("llama.rope.scaling.type", "none");
    w.add_string("general.name", "another name");
  };
  EXPECT_EQ(model_fingerprint(*other.load().value()).value(), model_fingerprint(*model_).value());
}

TEST_F(CalibrationFile, OfVersion1IsRefusedByItsVersion) {
  // Magic, fingerprint, four counts, no numbers, checksum.
  const Status status = load("KVIKCAL1" + std::string(24, '\1') + std::string(8, '\2'));
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_THAT(status.message(), ::testing::AllOf(HasSubstr(path_), HasSubstr("version 1")));
}

TEST_F(CalibrationFile, ThatIsNotThereOrCannotBeWrittenIsNamed) {
  const Status missing = load_calibration(*model_, "/nonexistent/x.kvcal").status();
  EXPECT_EQ(missing.code(), StatusCode::io_error);
  EXPECT_THAT(missing.message(), HasSubstr("/nonexistent/x.kvcal"));
  EXPECT_EQ(save_calibration(made_, *model_, "/nonexistent/x.kvcal").code(), StatusCode::io_error);
}

}  // namespace
}  // namespace kvik
