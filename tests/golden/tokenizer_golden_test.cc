// The tokenizer against ids that llama.cpp and Hugging Face tokenizers agree on.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvik/model/chat_template.h"
#include "kvik/model/model.h"
#include "kvik/model/stream_decoder.h"
#include "kvik/model/tokenizer.h"
#include "support/model_files.h"

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
    const std::filesystem::path path = test::cache_dir() / test::kSmolLm2File;
    if (const auto why = test::missing(path)) {
      if (test::models_required()) FAIL() << *why;
      GTEST_SKIP() << *why;
    }
    Result<std::shared_ptr<const Model>> model =
        Model::load(path.string(), {.check_weights = false});
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(model).value();
    tokenizer_ = &model_->tokenizer();
  }

  std::vector<TokenId> encode(const std::string& text, bool parse_special) {
    Result<std::vector<TokenId>> ids = tokenizer_->encode(text, {.parse_special = parse_special});
    EXPECT_TRUE(ids.ok()) << ids.status().to_string();
    return ids.ok() ? std::move(ids).value() : std::vector<TokenId>{};
  }

  std::shared_ptr<const Model> model_;
  const Tokenizer* tokenizer_ = nullptr;
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

// Template and tokenizer together: as above, but what a message spells never becomes control.
TEST_F(SmolLm2Tokenizer, KeepsControlTokensOutOfMessages) {
  const Result<const ChatTemplate*> chat_template = model_->chat_template();
  ASSERT_TRUE(chat_template.ok()) << chat_template.status().to_string();
  int forged = 0;
  for (const json& line : read_lines("smollm2-135m-instruct-q4_1/chat.jsonl")) {
    ChatInput input;
    input.add_generation_prompt = true;
    bool spells_control = false;
    for (const json& message : line.at("messages")) {
      input.messages.push_back({message.at("role"), message.at("content")});
      spells_control |= input.messages.back().content.find("<|im_") != std::string::npos;
    }
    const RenderedChat rendered = chat_template.value()->render(input).value();
    EXPECT_EQ(rendered.text(), line.at("prompt_generate"));
    const std::vector<TokenId> ids = tokenizer_->encode_spans(rendered.spans()).value();
    EXPECT_EQ(tokenizer_->decode(ids).value(), rendered.text());
    const auto plain = line.at("ids_generate").get<std::vector<TokenId>>();
    if (!spells_control) {
      EXPECT_EQ(ids, plain) << line.at("name");
      continue;
    }
    ++forged;
    // The default system turn, the user's turn, the start of the answer.
    EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer_->find("<|im_start|>")), 3);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer_->find("<|im_end|>")), 2);
    EXPECT_GT(std::count(plain.begin(), plain.end(), *tokenizer_->find("<|im_end|>")), 2);
  }
  EXPECT_EQ(forged, 1);
}

}  // namespace
}  // namespace kvik
