// The tokenizer against ids that llama.cpp and Hugging Face tokenizers agree on.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvik/model/stream_decoder.h"
#include "kvik/model/tokenizer.h"
#include "support/model_vocabulary.h"

namespace kvik {
namespace {

using nlohmann::json;

std::vector<json> read_lines(const std::string& name) {
  std::ifstream in(std::string(KVIK_GOLDEN_DIR) + "/" + name);
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

class SmolLm2Tokenizer : public testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path path =
        test::cache_dir() / "SmolLM2-135M-Instruct.Q4_1.vocabulary.json";
    std::optional<Result<test::ModelVocabulary>> model = test::load_vocabulary(path);
    if (!model) {
      if (test::models_required()) FAIL() << path << " is missing";
      GTEST_SKIP() << path << " is missing: write it with tools/export_vocabulary.py";
    }
    ASSERT_TRUE(model->ok()) << model->status().to_string();
    model_ = std::move(*model).value();
    Result<Tokenizer> tokenizer = Tokenizer::create(model_.vocabulary);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    tokenizer_.emplace(std::move(tokenizer).value());
  }

  std::vector<TokenId> encode(const std::string& text, bool parse_special) {
    Result<std::vector<TokenId>> ids = tokenizer_->encode(text, {.parse_special = parse_special});
    EXPECT_TRUE(ids.ok()) << ids.status().to_string();
    return ids.ok() ? std::move(ids).value() : std::vector<TokenId>{};
  }

  test::ModelVocabulary model_;
  std::optional<Tokenizer> tokenizer_;
};

TEST_F(SmolLm2Tokenizer, GivesTheGoldenIdsAndTheTextBack) {
  const std::vector<json> lines = read_lines("smollm2-135m-instruct-q4_1/tokenizer.jsonl");
  ASSERT_EQ(lines.size(), 170U);
  for (const json& line : lines) {
    const auto text = line.at("text").get<std::string>();
    SCOPED_TRACE(text);
    const auto ids = line.at("ids").get<std::vector<TokenId>>();
    EXPECT_EQ(encode(text, false), ids);
    EXPECT_EQ(encode(text, true), line.at("ids_special").get<std::vector<TokenId>>());
    ASSERT_TRUE(line.at("roundtrip").get<bool>());
    EXPECT_EQ(tokenizer_->decode(ids).value(), text);

    StreamDecoder decoder(*tokenizer_, false);
    std::string streamed;
    for (const TokenId id : ids) streamed += decoder.push(id).value();
    EXPECT_EQ(streamed + decoder.flush(), text);
  }
}

TEST_F(SmolLm2Tokenizer, GivesTheGoldenIdsForRenderedChats) {
  const std::vector<json> lines = read_lines("smollm2-135m-instruct-q4_1/chat.jsonl");
  ASSERT_EQ(lines.size(), 10U);
  for (const json& line : lines) {
    EXPECT_EQ(encode(line.at("prompt_generate").get<std::string>(), true),
              line.at("ids_generate").get<std::vector<TokenId>>())
        << line.at("name");
  }
}

}  // namespace
}  // namespace kvik
