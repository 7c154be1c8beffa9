#include "kvik/model/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "support/gguf_writer.h"

namespace kvik {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Lists {
  std::vector<std::string> tokens = {"<s>", "a", "b"};
  std::vector<float> scores = {0, -1, -2.5F};
  std::vector<int32_t> types = {3, 1, 1};
};

std::vector<std::byte> write(const Lists& lists) {
  testing::GgufWriter writer;
  writer.add_string("tokenizer.ggml.model", "llama");
  writer.add_strings("tokenizer.ggml.tokens", lists.tokens);
  writer.add_array("tokenizer.ggml.scores", GgufType::f32, lists.scores);
  writer.add_array("tokenizer.ggml.token_type", GgufType::i32, lists.types);
  writer.add_u32("tokenizer.ggml.bos_token_id", 0);
  writer.add_bool("tokenizer.ggml.add_bos_token", true);
  writer.add_bool("tokenizer.ggml.add_space_prefix", false);
  return writer.bytes();
}

Result<Vocabulary> read(const std::vector<std::byte>& bytes) {
  const Result<GgufFile> file = GgufFile::parse(bytes);
  KVIK_CHECK(file.ok(), file.status().message().c_str());
  return read_vocabulary(*file);
}

TEST(Vocabulary, IsReadAsItStandsInTheFile) {
  const Vocabulary v = read(write({})).value();
  EXPECT_EQ(v.model, "llama");
  EXPECT_EQ(v.pre, "");
  EXPECT_THAT(v.pieces, ElementsAre("<s>", "a", "b"));
  EXPECT_THAT(v.scores, ElementsAre(0, -1, -2.5F));
  EXPECT_THAT(v.token_types, ElementsAre(3, 1, 1));
  EXPECT_EQ(v.bos, 0);
  EXPECT_EQ(v.eos, std::nullopt);
  EXPECT_EQ(v.add_bos, true);
  EXPECT_EQ(v.add_eos, std::nullopt);
  EXPECT_EQ(v.add_space_prefix, false);
}

TEST(Vocabulary, RefusesListsThatDoNotFitEachOther) {
  const auto expect_corrupt = [](const Lists& lists, const char* message) {
    const Result<Vocabulary> vocabulary = read(write(lists));
    ASSERT_FALSE(vocabulary.ok()) << message;
    EXPECT_EQ(vocabulary.status().code(), StatusCode::corrupt);
    EXPECT_THAT(vocabulary.status().message(), HasSubstr(message));
  };
  expect_corrupt({.scores = {0, 1}}, "tokenizer.ggml.scores has 2 entries for 3 tokens");
  expect_corrupt({.types = {3, 1, 1, 1}}, "tokenizer.ggml.token_type has 4 entries for 3 tokens");
  expect_corrupt({.scores = {0, std::numeric_limits<float>::quiet_NaN(), 1}},
                 "tokenizer.ggml.scores[1] is not finite");
}

}  // namespace
}  // namespace kvik
