#include "kvik/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kvik/model/gguf.h"
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

TEST_P(WeightTypes, FiniteWeightsPassAndANonFiniteScaleIsNamedWithItsRow) {
  GoldenWeight golden = load_golden(type());
  const Weight weight = Weight::make(type(), golden.rows, golden.cols, golden.packed).value();
  EXPECT_TRUE(check_finite(weight, "w").ok());
  // All ones is a NaN in each of f32, f16 and bf16; the first value or scale of row 4.
  const size_t width = type() == WeightType::f32 ? 4 : 2;
  std::memset(golden.packed.data() + 4 * weight.row_bytes(), 0xff, width);
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

TEST(Weight, AnOffsetOfABlockIsCheckedForFiniteness) {
  std::vector<std::byte> block(20);
  block[3] = std::byte{0x7c};  // m = +infinity
  EXPECT_FALSE(check_finite(Weight::make(WeightType::q4_1, 1, 32, block).value(), "w").ok());
}

TEST(Weight, RowsNeedWholeBlocks) {
  EXPECT_EQ(weight_row_bytes(WeightType::q4_1, 576), 360);
  EXPECT_EQ(weight_row_bytes(WeightType::q8_0, 576), 612);
  EXPECT_EQ(weight_row_bytes(WeightType::q4_0, 31), std::nullopt);
  EXPECT_EQ(weight_row_bytes(WeightType::f32, INT64_MAX), std::nullopt);
}

class FindWeight : public ::testing::Test {
 protected:
  FindWeight() {
    add("cube", 2, {32, 2, 3}, 6 * 18);
    add("norm", 0, {5}, 20);
    add("packed_k", 14, {256, 1}, 210);
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
}

TEST_F(FindWeight, SaysWhyATensorCannotBeUsed) {
  const GgufFile file = GgufFile::parse(bytes_).value();
  EXPECT_THAT(find_weight(file, "absent").status().message(), HasSubstr("no tensor \"absent\""));
  EXPECT_EQ(find_weight(file, "packed_k").status().code(), StatusCode::unsupported);
  EXPECT_THAT(find_weight(file, "packed_k").status().message(), HasSubstr("Q6_K"));
  EXPECT_THAT(find_weight(file, "future").status().message(), HasSubstr("type number 900"));
}

}  // namespace
}  // namespace kvik
