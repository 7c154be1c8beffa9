#include "kvik/format/kv_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kvik/format/packed_code.h"

namespace kvik {
namespace {

using testing::HasSubstr;

TEST(KvNames, OurOwnNamesMeanThemselvesOnTheSidesThatTheyStore) {
  for (const KvCode code : all_kv_codes()) {
    const std::string_view name = kv_code_name(code);
    EXPECT_EQ(resolve_key_name(name).ok(), stores_keys(code)) << name;
    EXPECT_EQ(resolve_value_name(name).ok(), stores_values(code)) << name;
    if (stores_keys(code)) {
      EXPECT_EQ(resolve_key_name(name).value(), code);
    }
    if (stores_values(code)) {
      EXPECT_EQ(resolve_value_name(name).value(), code);
    }
  }
}

// No foreign type of b bits is stored in fewer.
TEST(KvNames, LlamaCppTypesLoseNoBits) {
  for (const auto& [name, bits] :
       {std::pair{"q8_0", 8}, {"q5_1", 5}, {"q5_0", 5}, {"q4_1", 4}, {"q4_0", 4}, {"iq4_nl", 4}}) {
    EXPECT_EQ(packed_code_bits(resolve_key_name(name).value()), bits) << name;
    EXPECT_EQ(packed_code_bits(resolve_value_name(name).value()), bits) << name;
  }
  EXPECT_EQ(resolve_key_name("q8_0").value(), KvCode::tq8);
  EXPECT_EQ(resolve_key_name("q5_1").value(), KvCode::tqk_q5_0);
  EXPECT_EQ(resolve_value_name("q5_1").value(), KvCode::tqv_q5_0);
  EXPECT_EQ(resolve_value_name("q4_0").value(), KvCode::tcq4);
}

TEST(KvNames, FormatsArePairsSingleNamesAndPresets) {
  const auto format = [](const char* name) { return resolve_format_name(name).value(); };
  EXPECT_EQ(format("f16"), (KvFormat{KvCode::f16, KvCode::f16}));
  EXPECT_EQ(format("q8_0:q4_0"), (KvFormat{KvCode::tq8, KvCode::tcq4}));
  EXPECT_EQ(format("q5_0"), (KvFormat{KvCode::tqk_q5_0, KvCode::tqv_q5_0}));
  EXPECT_EQ(format("tqk_q4_0:tqv_q3_0"), (KvFormat{KvCode::tqk_q4_0, KvCode::tqv_q3_0}));
  EXPECT_EQ(format("fp8"), (KvFormat{KvCode::tq8, KvCode::tq8}));
  EXPECT_EQ(format("turboquant_k8v4"), (KvFormat{KvCode::tq8, KvCode::tcq4}));
  EXPECT_EQ(format("turboquant_4bit_nc"), (KvFormat{KvCode::tcq4, KvCode::tcq4}));
  EXPECT_EQ(format("turboquant_k3v4_nc"), (KvFormat{KvCode::tcq3, KvCode::tcq4}));
  EXPECT_EQ(format("turboquant_3bit_nc"), (KvFormat{KvCode::tcq3, KvCode::tcq3}));
}

TEST(KvNames, RefusalsSayWhatIsKnown) {
  for (const char* name : {"", "q9", "Q8_0", "f16:", ":f16", "f16:f16:f16", "fp8:fp8"}) {
    EXPECT_EQ(resolve_format_name(name).status().code(), StatusCode::invalid_argument) << name;
  }
  EXPECT_THAT(resolve_format_name("q9").status().message(),
              HasSubstr("known are f32, f16, bf16, q8, q6, q4, tqk_q8_0"));
  EXPECT_THAT(resolve_format_name("q9").status().message(), HasSubstr("of llama.cpp q8_0, q5_1"));
  EXPECT_THAT(resolve_format_name("q9").status().message(), HasSubstr("of vLLM: fp8, turboquant"));
  EXPECT_THAT(resolve_format_name("tqk_int2").status().message(),
              HasSubstr("tqk_int2 stores keys only; for values choose one of f32, f16"));
  EXPECT_THAT(resolve_key_name("tqv_q3_0").status().message(),
              HasSubstr("tqv_q3_0 stores values only; for keys choose"));
}

}  // namespace
}  // namespace kvik
