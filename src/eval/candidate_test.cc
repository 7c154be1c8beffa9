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

TEST(CandidateFormat, EndingsAreReadInAnyOrderAndPrintedInOne) {
  const CandidateFormat all = parsed("tcq4:tcq3+nocalib+skip0/-1/5+recent64+first4");
  EXPECT_EQ(all.exact_first, 4);
  EXPECT_EQ(all.exact_recent, 64);
  EXPECT_EQ(all.wide_layers, (std::vector<int>{0, -1, 5}));
  EXPECT_FALSE(all.is_calibrated);
  EXPECT_EQ(all.name(), "tcq4:tcq3+first4+recent64+skip0/-1/5+nocalib");
  EXPECT_EQ(parsed("fp8+first4").name(), "tq8+first4");
  EXPECT_TRUE(parsed("tcq4+skip2").is_calibrated);
}

TEST(CandidateFormat, EndingsThatAreNoneAreRefusedWithThoseThatAre) {
  for (const char* ending : {"+",
                             "+first",
                             "+first-1",
                             "+first0",
                             "+first4x",
                             "+first 4",
                             "+first99999999999",
                             "+last4",
                             "+recent",
                             "+recent-3",
                             "+skip",
                             "+skip0/",
                             "+skip/1",
                             "+skip0,1",
                             "+skipx",
                             "+nocalib1",
                             "+first4+",
                             "+first4+first4",
                             "+recent8+recent9",
                             "+skip0+skip1",
                             "+nocalib+nocalib"}) {
    const Result<CandidateFormat> format = parse_candidate_format(std::string("tcq4") + ending);
    ASSERT_FALSE(format.ok()) << ending;
    EXPECT_THAT(format.status().message(), HasSubstr("+first4, +recent64, +skip0/-1 and +nocalib"))
        << ending;
  }
}

TEST(Candidate, StoresWhatItsEndingsSay) {
  test::TinyModel tiny({.num_layers = 3, .num_kv_heads = 2, .head_dim = 64, .rope_dim = 64});
  const auto model = tiny.load().value();
  const auto calibration = std::make_shared<const KeyCalibration>();
  const auto made = [&](const char* name) {
    return make_candidate(*model, parsed(name), calibration).value();
  };
  EXPECT_EQ(made("tcq4").cache.key_calibration, calibration);
  EXPECT_EQ(made("tcq4+nocalib").cache.key_calibration, nullptr);
  EXPECT_EQ(made("q8:tcq4").cache.key_calibration, nullptr);
  const KvProtection protection = made("q4+first4+recent64+skip0/-1").cache.protection;
  EXPECT_EQ(protection.exact_first, 4);
  EXPECT_EQ(protection.exact_recent, 64);
  EXPECT_EQ(protection.wide_layers, (std::vector<int>{0, 2}));
  EXPECT_EQ(bytes_per_token(*model, made("tcq4+skip0/-1+nocalib")).value(),
            2 * 2 * (2 * 64 * 2) + 2 * 2 * (32 + 2));
  for (const char* name : {"tcq4+skip3", "tcq4+skip0/-4"}) {
    const Result<Candidate> candidate = make_candidate(*model, parsed(name));
    ASSERT_FALSE(candidate.ok());
    EXPECT_THAT(candidate.status().message(), HasSubstr("layers 0 to 2"));
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
