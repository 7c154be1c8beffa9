#include "kvik/eval/candidate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/tiny_model.h"

namespace kvik {
namespace {

using ::testing::HasSubstr;

CandidateFormat parsed(std::string_view name) {
  Result<CandidateFormat> format = parse_candidate_format(name);
  EXPECT_TRUE(format.ok()) << format.status().to_string();
  return format.ok() ? *format : CandidateFormat{};
}

TEST(CandidateFormat, NamesOfEveryKindAreRead) {
  EXPECT_EQ(parsed("f16").format, (KvFormat{KvCode::f16, KvCode::f16}));
  EXPECT_EQ(parsed("tcq4:tcq3").format, (KvFormat{KvCode::tcq4, KvCode::tcq3}));
  EXPECT_EQ(parsed("turboquant_k8v4").format, (KvFormat{KvCode::tq8, KvCode::tcq4}));
  const CandidateFormat mixed = parsed("ggml-q8_0-rot:tcq3");
  EXPECT_EQ(mixed.format, (KvFormat{KvCode::f32, KvCode::tcq3}));
  EXPECT_EQ(mixed.rounded_k, (GgmlFormat{GgmlBlock::q8_0, true}));
  EXPECT_FALSE(mixed.rounded_v);
}

TEST(CandidateFormat, PrintsOurNames) {
  const std::pair<const char*, const char*> names[] = {
      {"f16", "f16"},
      {"f16:f16", "f16"},
      {"fp8", "tq8"},
      {"q8_0:q4_0", "tq8:tcq4"},
      {"ggml-q8_0", "ggml-q8_0"},
      {"ggml-q8_0:ggml-q4_0-rot", "ggml-q8_0:ggml-q4_0-rot"},
      {"tcq4:ggml-q4_0", "tcq4:ggml-q4_0"}};
  for (const auto& [given, ours] : names) EXPECT_EQ(parsed(given).name(), ours);
}

TEST(CandidateFormat, WrongNamesAreRefusedWithAllKinds) {
  for (const char* name :
       {"q99", "ggml-q4_1", "f16:", "ggml-q8_0:q99", "q99:ggml-q8_0", "fp8:f16", "tqv_q4_0:f16"}) {
    const Result<CandidateFormat> format = parse_candidate_format(name);
    ASSERT_FALSE(format.ok()) << name;
    EXPECT_THAT(format.status().message(), HasSubstr("ggml-q8_0, ggml-q5_1, ggml-q4_0")) << name;
  }
}

TEST(Candidate, TakesTheBytesOfItsFormat) {
  test::TinyModel tiny({.num_layers = 3, .num_kv_heads = 2, .head_dim = 64, .rope_dim = 64});
  const auto model = tiny.load().value();
  const auto bytes = [&](const char* name) {
    return bytes_per_token(*model, make_candidate(*model, parsed(name)).value()).value();
  };
  EXPECT_EQ(bytes("f16"), 3 * 2 * 2 * 64 * 2);
  EXPECT_EQ(bytes("f32:f16"), 3 * 2 * 64 * (4 + 2));
  EXPECT_EQ(bytes("tcq4"), 3 * 2 * 2 * (32 + 2));
  EXPECT_EQ(bytes("ggml-q4_0"), 3 * 2 * 2 * 36);
  EXPECT_EQ(bytes("ggml-q8_0:tcq4"), 3 * 2 * (68 + 34));
}

TEST(Candidate, IsRefusedWhereTheHeadDimDoesNotFit) {
  test::TinyModel tiny;  // head_dim 8
  const auto model = tiny.load().value();
  EXPECT_TRUE(make_candidate(*model, parsed("q8")).ok());
  for (const char* name : {"tcq4", "ggml-q8_0", "f16:ggml-q8_0", "ggml-q8_0:f16"}) {
    const Result<Candidate> candidate = make_candidate(*model, parsed(name));
    ASSERT_FALSE(candidate.ok()) << name;
    EXPECT_THAT(candidate.status().message(), HasSubstr("8")) << name;
  }
}

}  // namespace
}  // namespace kvik
