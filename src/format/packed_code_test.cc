#include "kvik/format/packed_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kvik/format/kv_format.h"

namespace kvik {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(PackedCode, NamesAreUniqueAndParseBack) {
  std::set<std::string_view> names;
  for (const KvCode code : all_packed_codes()) {
    EXPECT_TRUE(names.insert(kv_code_name(code)).second);
    EXPECT_EQ(parse_kv_code(kv_code_name(code)).value(), code);
  }
  EXPECT_EQ(names.size(), 20u);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(PackedCode, RefusesUnknownNamesAndListsTheKnown) {
  for (const char* name : {"", "Q8", "q5", "q8_0", "tq5", "tcq8", "tq4 "}) {
    const Result<KvCode> code = parse_kv_code(name);
    ASSERT_FALSE(code.ok()) << name;
    EXPECT_EQ(code.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(code.status().message(),
                HasSubstr("known are f32, f16, bf16, q8, q6, q4, tqk_q8_0,"));
    EXPECT_THAT(code.status().message(), HasSubstr("tcq2"));
  }
}

TEST(PackedCode, KvQuantTakesEveryAliasInAnyCase) {
  const auto expect = [](std::initializer_list<const char*> names, std::optional<KvCode> mode) {
    for (const char* name : names) {
      const Result<std::optional<KvCode>> parsed = parse_kv_quant_mode(name);
      ASSERT_TRUE(parsed.ok()) << name;
      EXPECT_EQ(parsed.value(), mode) << name;
    }
  };
  expect({"", "off", "OFF", "none", "None", "false", "False", "0", "disabled", "disable"},
         std::nullopt);
  expect({"q8", "Q8", "8", "8bit", "8BIT", "int8", "uint8", "q8_0", "Q8-0"}, KvCode::q8);
  expect({"q6", "6", "6bit", "int6", "UINT6"}, KvCode::q6);
  expect({"q4", "4", "4bit", "int4", "uint4", "q4_0", "q4-0"}, KvCode::q4);
  for (const char* name : {"q5", "q8_1", "8 bit", "8-bit", "on", "true", "q6_0", "tq4", " q8"}) {
    const Result<std::optional<KvCode>> parsed = parse_kv_quant_mode(name);
    ASSERT_FALSE(parsed.ok()) << name;
    EXPECT_THAT(parsed.status().message(), HasSubstr("known are q8, 8, 8bit"));
    EXPECT_THAT(parsed.status().message(), HasSubstr("and off"));
  }
}

TEST(PackedCode, TurboQuantNamesMeanKeysOrValues) {
  EXPECT_EQ(parse_turboquant_key("q8_0").value(), KvCode::tqk_q8_0);
  EXPECT_EQ(parse_turboquant_key("int8").value(), KvCode::tqk_q8_0);
  EXPECT_EQ(parse_turboquant_key("uint8").value(), KvCode::tqk_uint8);
  EXPECT_EQ(parse_turboquant_key("q5_0").value(), KvCode::tqk_q5_0);
  for (const char* name : {"q4_0", "int4", "uint4"}) {
    EXPECT_EQ(parse_turboquant_key(name).value(), KvCode::tqk_q4_0);
  }
  for (const char* name : {"int2", "uint2"}) {
    EXPECT_EQ(parse_turboquant_key(name).value(), KvCode::tqk_int2);
  }
  EXPECT_EQ(parse_turboquant_value("q2_0").value(), KvCode::tqv_q2_0);
  EXPECT_EQ(parse_turboquant_value("q3_0").value(), KvCode::tqv_q3_0);
  EXPECT_EQ(parse_turboquant_value("q4_0").value(), KvCode::tqv_q4_0);
  EXPECT_EQ(parse_turboquant_value("q5_0").value(), KvCode::tqv_q5_0);
  EXPECT_EQ(parse_turboquant_value("q8_0").value(), KvCode::tqv_q8_0);
  for (const char* name : {"q3_0", "q2_0", "int5", "q8", ""}) {
    const Result<KvCode> code = parse_turboquant_key(name);
    ASSERT_FALSE(code.ok()) << name;
    EXPECT_THAT(code.status().message(),
                HasSubstr("known are q8_0, int8, uint8, q5_0, q4_0, int4, uint4, int2, uint2"));
  }
  for (const char* name : {"int8", "uint2", "q6_0", ""}) {
    const Result<KvCode> code = parse_turboquant_value(name);
    ASSERT_FALSE(code.ok()) << name;
    EXPECT_THAT(code.status().message(), HasSubstr("known are q2_0, q3_0, q4_0, q5_0, q8_0"));
  }
}

TEST(PackedCode, TurboQuantCodesStoreOneSideOnly) {
  for (const KvCode code : all_packed_codes()) {
    const std::string_view name = kv_code_name(code);
    EXPECT_EQ(stores_keys(code), !name.starts_with("tqv_")) << name;
    EXPECT_EQ(stores_values(code), !name.starts_with("tqk_")) << name;
    EXPECT_EQ(is_rotated(code), name[0] == 't' && !name.starts_with("tqk_")) << name;
  }
}

// The rule by name, written apart from the code under test.
bool takes(std::string_view name, int head_dim) {
  if (head_dim < 1) return false;
  if (name == "q8") return head_dim <= 576;
  if (name == "q6") return head_dim % 4 == 0 && head_dim <= 576;
  if (name == "q4") return head_dim % 2 == 0 && head_dim <= 576;
  if (name.starts_with("tqk_") || name.starts_with("tqv_")) {
    return head_dim % 32 == 0 && head_dim <= 576;
  }
  return head_dim % 16 == 0 && head_dim >= 32 && head_dim <= 512;
}

TEST(PackedCode, TakesTheHeadDimsOfItsFamilyAndNamesWhatWouldWork) {
  for (const KvCode code : all_packed_codes()) {
    const std::string_view name = kv_code_name(code);
    for (int head_dim = -2; head_dim <= 600; ++head_dim) {
      const Status status = check(code, head_dim);
      ASSERT_EQ(status.ok(), takes(name, head_dim)) << name << " " << head_dim;
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), StatusCode::invalid_argument);
      EXPECT_THAT(status.message(), HasSubstr("head_dim is " + std::to_string(head_dim)));
      EXPECT_THAT(status.message(), HasSubstr(std::string(name) + " stores "));
    }
  }
}

TEST(PackedCode, RefusalsSayWhichFormatsStoreTheHeadDim) {
  EXPECT_EQ(check(KvCode::tqk_q4_0, 80).message(),
            "tqk_q4_0 stores multiples of 32 from 32 to 576, and head_dim is 80; q8, q6, q4, tq8, "
            "tq4, tq3, tq2, tcq4, tcq3, tcq2, f32, f16 and bf16 store it");
  EXPECT_EQ(check(KvCode::tcq4, 100).message(),
            "tcq4 stores multiples of 16 from 32 to 512, and head_dim is 100; q8, q6, q4, f32, f16 "
            "and bf16 store it");
  EXPECT_EQ(check(KvCode::q4, 63).message(),
            "q4 stores multiples of 2 from 2 to 576, and head_dim is 63; q8, f32, f16 and bf16 "
            "store it");
  EXPECT_EQ(check(KvCode::q8, 577).message(),
            "q8 stores head dims from 1 to 576, and head_dim is 577");
  // A value format is offered in the place of a value format.
  EXPECT_THAT(check(KvCode::tqv_q3_0, 48).message(), Not(HasSubstr("tqk_")));
}

// Bytes that the formats' publications state.
TEST(PackedCode, RowsHaveTheStatedBytes) {
  const auto bytes = packed_row_bytes;
  // KV-Quant at head dim 256, K and V: 520, 392, 264.
  EXPECT_EQ(2 * bytes(KvCode::q8, 256), 520);
  EXPECT_EQ(2 * bytes(KvCode::q6, 256), 392);
  EXPECT_EQ(2 * bytes(KvCode::q4, 256), 264);
  // TurboQuant at head dim 128.
  EXPECT_EQ(bytes(KvCode::tqk_q8_0, 128), 144);
  EXPECT_EQ(bytes(KvCode::tqk_uint8, 128), 144);
  EXPECT_EQ(bytes(KvCode::tqk_q5_0, 128), 96);
  EXPECT_EQ(bytes(KvCode::tqk_q4_0, 128), 80);
  EXPECT_EQ(bytes(KvCode::tqk_int2, 128), 48);
  EXPECT_EQ(bytes(KvCode::tqv_q2_0, 128), 40);
  EXPECT_EQ(bytes(KvCode::tqv_q3_0, 128), 56);
  EXPECT_EQ(bytes(KvCode::tqv_q4_0, 128), 72);
  EXPECT_EQ(bytes(KvCode::tqv_q5_0, 128), 88);
  EXPECT_EQ(bytes(KvCode::tqv_q8_0, 128), 136);
  // Bits and an eighth.
  for (const KvCode code : {KvCode::tq8, KvCode::tq4, KvCode::tq3, KvCode::tq2, KvCode::tcq4,
                            KvCode::tcq3, KvCode::tcq2}) {
    EXPECT_EQ(bytes(code, 128), 128 * packed_code_bits(code) / 8 + 2);
    EXPECT_EQ(bytes(code, 80), 10 * packed_code_bits(code) + 2);
  }
  const PackedRowLayout keys = packed_row_layout(KvCode::tqk_q5_0, 96);
  EXPECT_EQ(keys.code_bytes, 60);
  EXPECT_EQ(keys.scale_bytes, 6);
  EXPECT_EQ(keys.zero_bytes, 6);
}

}  // namespace
}  // namespace kvik
