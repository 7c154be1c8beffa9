#include "kvik/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "kvik/model/gguf.h"
#include "model/weight_scales_test_util.h"
#include "support/gguf_writer.h"

namespace kvik {
namespace {

using ::testing::HasSubstr;

struct GoldenWeight {
  int64_t rows = 0, cols = 0;
  std::vector<std::byte> packed;
  std::vector<float> values;
};

GoldenWeight load_golden(WeightType type) {
  const std::string path =
      std::string(KVIK_GOLDEN_DIR) + "/weights/" + std::string(weight_type_name(type)) + ".bin";
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  uint32_t header[3] = {};
  std::memcpy(header, bytes.data(), sizeof header);
  GoldenWeight golden;
  golden.rows = header[0];
  golden.cols = header[1];
  golden.packed.resize(size_t{header[0]} * header[2]);
  golden.values.resize(size_t{header[0]} * header[1]);
  std::memcpy(golden.packed.data(), bytes.data() + sizeof header, golden.packed.size());
  std::memcpy(golden.values.data(), bytes.data() + sizeof header + golden.packed.size(),
              golden.values.size() * sizeof(float));
  return golden;
}

// What checksums.txt has for a type; nullopt for plain types.
std::optional<uint64_t> golden_checksum(WeightType type) {
  std::ifstream in(std::string(KVIK_GOLDEN_DIR) + "/weights/checksums.txt");
  std::string name;
  uint64_t checksum = 0;
  while (in >> name >> std::hex >> checksum) {
    if (name == weight_type_name(type)) return checksum;
  }
  return std::nullopt;
}

class WeightTypes : public ::testing::TestWithParam<int> {
 protected:
  WeightType type() const { return static_cast<WeightType>(GetParam()); }
};

TEST_P(WeightTypes, RowsDecodeToTheGoldenBits) {
  const GoldenWeight golden = load_golden(type());
  const Result<Weight> weight = Weight::make(type(), golden.rows, golden.cols, golden.packed);
  ASSERT_TRUE(weight.ok()) << weight.status().to_string();
  std::vector<float> row(static_cast<size_t>(golden.cols));
  for (int64_t r = 0; r < golden.rows; ++r) {
    decode_row(weight.value(), r, row.data());
    for (int64_t c = 0; c < golden.cols; ++c) {
      EXPECT_EQ(std::bit_cast<uint32_t>(row[static_cast<size_t>(c)]),
                std::bit_cast<uint32_t>(golden.values[static_cast<size_t>(r * golden.cols + c)]))
          << "row " << r << " col " << c;
    }
  }
}

// The blocks of tools/make_weight_vectors.py, whose bytes, one by one, take every value: every code
// of every scale and of every value, at each of its places.
TEST_P(WeightTypes, BlocksOfEveryCodeDecodeToTheGoldenChecksum) {
  const int64_t block_bytes = weight_row_bytes(type(), weight_block_values(type())).value();
  if (weight_block_values(type()) == 1) {
    EXPECT_EQ(golden_checksum(type()), std::nullopt);
    return;
  }
  constexpr int64_t kBlocks = 4096;
  std::vector<std::byte> bytes(static_cast<size_t>(kBlocks * block_bytes));
  uint32_t state = 1;
  for (std::byte& b : bytes)
    b = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  for (int64_t b = 0; b < kBlocks; ++b) {
    for (const int at : testing::scale_offsets(type())) {
      std::byte& upper = bytes[static_cast<size_t>(b * block_bytes + at + 1)];
      if ((upper & std::byte{0x7c}) == std::byte{0x7c}) upper &= std::byte{0x83};
    }
  }
  const Weight weight = Weight::make(type(), kBlocks, weight_block_values(type()), bytes).value();
  EXPECT_TRUE(check_finite(weight, "w").ok());
  std::vector<float> row(static_cast<size_t>(weight.cols()));
  uint64_t checksum = 0xcbf29ce484222325u;
  for (int64_t b = 0; b < kBlocks; ++b) {
    decode_row(weight, b, row.data());
    for (const float value : row) {
      checksum = (checksum ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3u;
    }
  }
  EXPECT_EQ(golden_checksum(type()), checksum);
}

TEST_P(WeightTypes, FiniteWeightsPassAndANonFiniteScaleIsNamedWithItsRow) {
  GoldenWeight golden = load_golden(type());
  const Weight weight = Weight::make(type(), golden.rows, golden.cols, golden.packed).value();
  EXPECT_TRUE(check_finite(weight, "w").ok());
  // All ones is a NaN in each of f32, f16 and bf16; the first value or scale of row 4.
  const size_t width = type() == WeightType::f32 ? 4 : 2;
  const int at = testing::scale_offsets(type())[0];
  std::memset(golden.packed.data() + 4 * weight.row_bytes() + at, 0xff, width);
  const Status status = check_finite(weight, "blk.0.ffn_up.weight");
  EXPECT_EQ(status.code(), StatusCode::corrupt);
  EXPECT_THAT(status.message(), HasSubstr("\"blk.0.ffn_up.weight\""));
  EXPECT_THAT(status.message(), HasSubstr("row 4"));
}

TEST_P(WeightTypes, MakeRefusesBytesOfAnotherSize) {
  const GoldenWeight golden = load_golden(type());
  const std::span<const std::byte> bytes = golden.packed;
  EXPECT_FALSE(Weight::make(type(), golden.rows, golden.cols, bytes.first(bytes.size() - 1)).ok());
  EXPECT_FALSE(Weight::make(type(), golden.rows + 1, golden.cols, bytes).ok());
  EXPECT_FALSE(Weight::make(type(), 0, golden.cols, {}).ok());
  EXPECT_FALSE(Weight::make(type(), -1, golden.cols, bytes).ok());
  EXPECT_FALSE(Weight::make(type(), int64_t{1} << 60, int64_t{1} << 20, bytes).ok());
}

INSTANTIATE_TEST_SUITE_P(All, WeightTypes, ::testing::Range(0, kNumWeightTypes), [](const auto& i) {
  return std::string(weight_type_name(static_cast<WeightType>(i.param)));
});

TEST_P(WeightTypes, ABlockIsFiniteUnlessOneOfItsScalesIsNot) {
  const int64_t values = weight_block_values(type());
  if (values == 1) return;
  const int64_t block_bytes = weight_row_bytes(type(), values).value();
  std::vector<std::byte> block(static_cast<size_t>(block_bytes), std::byte{0xff});
  const Weight weight = Weight::make(type(), 1, values, block).value();
  const std::span<const int> scales = testing::scale_offsets(type());
  const auto set_scales = [&](uint16_t bits) {
    for (const int at : scales) std::memcpy(block.data() + at, &bits, sizeof bits);
  };
  set_scales(0x7bff);  // the largest finite number, under the largest codes
  EXPECT_TRUE(check_finite(weight, "w").ok());
  std::vector<float> decoded(static_cast<size_t>(values));
  decode_row(weight, 0, decoded.data());
  for (const float value : decoded) EXPECT_TRUE(std::isfinite(value));
  for (const int at : scales) {
    for (const uint16_t bad : std::array<uint16_t, 4>{0x7c00, 0xfc00, 0x7c01, 0xffff}) {
      set_scales(0x3c00);
      std::memcpy(block.data() + at, &bad, sizeof bad);
      EXPECT_FALSE(check_finite(weight, "w").ok()) << at << " " << bad;
    }
  }
}

TEST(Weight, RowsNeedWholeBlocks) {
  EXPECT_EQ(weight_row_bytes(WeightType::q4_1, 576), 360);
  EXPECT_EQ(weight_row_bytes(WeightType::q8_0, 576), 612);
  EXPECT_EQ(weight_row_bytes(WeightType::q4_0, 31), std::nullopt);
  EXPECT_EQ(weight_row_bytes(WeightType::q4_k, 512), 288);
  EXPECT_EQ(weight_row_bytes(WeightType::q4_k, 128), std::nullopt);
  EXPECT_EQ(weight_row_bytes(WeightType::f32, INT64_MAX), std::nullopt);
}

class FindWeight : public ::testing::Test {
 protected:
  FindWeight() {
    add("cube", 2, {32, 2, 3}, 6 * 18);
    add("norm", 0, {5}, 20);
    add("packed_k", 14, {256, 2}, 420);
    add("tiny", 16, {256, 1}, 66);
    add("future", 900, {4}, 4);
    bytes_ = writer_.bytes();
  }
  void add(std::string name, uint32_t type, std::vector<uint64_t> shape, size_t num_bytes) {
    testing::TensorSpec spec;
    spec.name = std::move(name);
    spec.type = type;
    spec.shape = std::move(shape);
    spec.data.resize(num_bytes);
    writer_.add_tensor(spec);
  }
  testing::GgufWriter writer_;
  std::vector<std::byte> bytes_;
};

TEST_F(FindWeight, FlattensTheOuterDimensionsIntoRows) {
  const GgufFile file = GgufFile::parse(bytes_).value();
  const Weight cube = find_weight(file, "cube").value();
  EXPECT_EQ(cube.type(), WeightType::q4_0);
  EXPECT_EQ(cube.rows(), 6);
  EXPECT_EQ(cube.cols(), 32);
  const Weight norm = find_weight(file, "norm").value();
  EXPECT_EQ(norm.rows(), 1);
  EXPECT_EQ(norm.cols(), 5);
  const Weight packed = find_weight(file, "packed_k").value();
  EXPECT_EQ(packed.type(), WeightType::q6_k);
  EXPECT_EQ(packed.rows(), 2);
  EXPECT_EQ(packed.cols(), 256);
}

TEST_F(FindWeight, SaysWhyATensorCannotBeUsed) {
  const GgufFile file = GgufFile::parse(bytes_).value();
  EXPECT_THAT(find_weight(file, "absent").status().message(), HasSubstr("no tensor \"absent\""));
  EXPECT_EQ(find_weight(file, "tiny").status().code(), StatusCode::unsupported);
  EXPECT_THAT(find_weight(file, "tiny").status().message(), HasSubstr("IQ2_XXS"));
  EXPECT_THAT(find_weight(file, "tiny").status().message(), HasSubstr("quantize the model to"));
  EXPECT_THAT(find_weight(file, "future").status().message(), HasSubstr("type number 900"));
}

}  // namespace
}  // namespace kvik
