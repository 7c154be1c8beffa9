// A model in several files: all parts together, and what is said of those that do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "kvik/model/gguf.h"
#include "kvik/model/model.h"
#include "support/gguf_writer.h"

namespace kvik {
namespace {

using ::testing::AllOf;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::TensorSpec;
using Bytes = std::vector<std::byte>;

struct Part {
  uint16_t number = 0, count = 2;
  int32_t num_tensors = 3;
  std::vector<std::string> tensors;
  std::string architecture = "llama";
};

Bytes write(const Part& part) {
  GgufWriter w;
  w.add_string("general.architecture", part.architecture);
  if (part.number == 0) w.add_u32("llama.block_count", 2);
  w.add_value("split.no", GgufType::u16, part.number);
  w.add_value("split.count", GgufType::u16, part.count);
  w.add_value("split.tensors.count", GgufType::i32, part.num_tensors);
  for (const std::string& name : part.tensors) {
    TensorSpec spec;
    spec.name = name;
    spec.shape = {8};
    spec.data.assign(32, static_cast<std::byte>(name.back()));
    w.add_tensor(spec);
  }
  return w.bytes();
}

const Part kFirst{.tensors = {"a", "b"}};
const Part kSecond{.number = 1, .tensors = {"c"}};

Result<GgufFile> join(const std::vector<Bytes>& parts) {
  std::vector<std::span<const std::byte>> views(parts.begin(), parts.end());
  return GgufFile::parse_parts(views);
}

TEST(GgufParts, AllTogetherAreOneFile) {
  const std::vector<Bytes> parts = {write(kFirst), write(kSecond)};
  const Result<GgufFile> file = join(parts);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->is_complete());
  EXPECT_EQ(file->num_parts(), 2);
  EXPECT_EQ(file->file_bytes(), static_cast<int64_t>(parts[0].size() + parts[1].size()));
  EXPECT_EQ(file->integer("llama.block_count").value(), 2);
  ASSERT_EQ(file->tensors().size(), 3U);
  for (const char* name : {"a", "b", "c"}) {
    const GgufTensor* tensor = file->find_tensor(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(file->tensor_bytes(*tensor).value()[0], static_cast<std::byte>(name[0]));
  }
  const Result<GgufFile> alone = GgufFile::parse(parts[0]);
  EXPECT_FALSE(alone->is_complete());
}

TEST(GgufParts, ThatDoNotBelongTogetherAreNamed) {
  const auto expect = [](const std::vector<Part>& parts, const char* what, const char* also = "") {
    std::vector<Bytes> bytes;
    for (const Part& part : parts) bytes.push_back(write(part));
    const Status status = join(bytes).status();
    EXPECT_EQ(status.code(), StatusCode::corrupt) << what;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(what), HasSubstr(also)));
  };
  expect({kSecond, kFirst}, "part 1: says that it is part 2 of 2");
  expect({kFirst, kFirst}, "part 2: says that it is part 1 of 2");
  expect({kFirst}, "has 2 parts", "1 are here");
  expect({kFirst, {.number = 1, .count = 3, .tensors = {"c"}}},
         "part 2: says that the model has 3");
  expect({kFirst, {.number = 1, .num_tensors = 9, .tensors = {"c"}}}, "part 2", "another model");
  expect({kFirst, {.number = 1, .tensors = {"c"}, .architecture = "qwen2"}},
         "\"general.architecture\" with another value", "part 2");
  expect({kFirst, {.number = 1, .tensors = {"b"}}}, "\"b\" occurs twice", "part 1 and in part 2");
  expect({kFirst, {.number = 1, .tensors = {}}}, "3 tensors by split.tensors.count", "have 2");
  expect({{.number = 2, .tensors = {"a"}}, kSecond}, "split.no is 2, but split.count is 2");
}

TEST(GgufParts, CutAnywhereAreRefused) {
  const Bytes first = write(kFirst), second = write(kSecond);
  for (size_t size = 0; size < second.size(); ++size) {
    ASSERT_FALSE(
        join({first, Bytes(second.begin(), second.begin() + static_cast<ptrdiff_t>(size))}).ok())
        << size;
  }
  for (size_t size = 0; size < first.size(); ++size) {
    ASSERT_FALSE(
        join({Bytes(first.begin(), first.begin() + static_cast<ptrdiff_t>(size)), second}).ok())
        << size;
  }
}

class GgufPartFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::path(::testing::TempDir()) / ("kvik_parts_" + test);
    std::filesystem::create_directories(folder_);
    put("m-00001-of-00002.gguf", kFirst);
    put("m-00002-of-00002.gguf", kSecond);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void put(const std::string& name, const Part& part) const {
    const Bytes bytes = write(part);
    std::ofstream(path(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  std::filesystem::path folder_;
};

TEST_F(GgufPartFiles, AreFoundBesideTheFirst) {
  EXPECT_EQ(GgufFile::open(path("m-00001-of-00002.gguf"))->tensors().size(), 3U);
}

TEST_F(GgufPartFiles, AnotherThanTheFirstNamesTheFirst) {
  const Status status = GgufFile::open(path("m-00002-of-00002.gguf")).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("part 2 of 2"), HasSubstr(path("m-00001-of-00002.gguf"))));
}

TEST_F(GgufPartFiles, OneThatIsMissingIsNamed) {
  std::filesystem::remove(path("m-00002-of-00002.gguf"));
  const Status status = GgufFile::open(path("m-00001-of-00002.gguf")).status();
  EXPECT_EQ(status.code(), StatusCode::io_error);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(path("m-00002-of-00002.gguf")), HasSubstr("part 2 of the 2")));
}

TEST_F(GgufPartFiles, AFirstPartOfAnotherNameSaysHowItMustBeCalled) {
  std::filesystem::rename(path("m-00001-of-00002.gguf"), path("m.gguf"));
  EXPECT_THAT(GgufFile::open(path("m.gguf")).status().message(), HasSubstr("-00001-of-00002.gguf"));
}

}  // namespace
}  // namespace kvik
