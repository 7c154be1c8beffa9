// The tokenizer against ids that llama.cpp and Hugging Face tokenizers agree on.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvik/model/chat_template.h"
#include "kvik/model/gguf.h"
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

std::vector<TokenId> encode(const Tokenizer& tokenizer, const std::string& text,
                            bool parse_special) {
  Result<std::vector<TokenId>> ids = tokenizer.encode(text, {.parse_special = parse_special});
  EXPECT_TRUE(ids.ok()) << ids.status().to_string();
  return ids.ok() ? std::move(ids).value() : std::vector<TokenId>{};
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// One line of tokenizer.jsonl: ids with and without control tokens, the text back in one go and in
// a stream.
void check_line(const Tokenizer& tokenizer, const json& line) {
  const auto text = line.at("text").get<std::string>();
  SCOPED_TRACE(text);
  ASSERT_TRUE(line.at("second_source_agrees").get<bool>());
  auto ids = line.at("ids").get<std::vector<TokenId>>();
  EXPECT_EQ(encode(tokenizer, text, false), ids);
  EXPECT_EQ(encode(tokenizer, text, true), line.at("ids_special").get<std::vector<TokenId>>());

  ASSERT_EQ(tokenizer.adds_bos(), line.at("add_bos").get<bool>());
  if (tokenizer.adds_bos()) ids.erase(ids.begin());
  const bool roundtrip = line.at("roundtrip").get<bool>();
  const std::string back = roundtrip ? text : from_hex(line.at("bytes_hex").get<std::string>());
  EXPECT_EQ(tokenizer.decode(ids).value(), back);
  StreamDecoder decoder(tokenizer, false);
  std::string streamed;
  for (const TokenId id : ids) {
    const std::string part = decoder.push(id).value();
    EXPECT_EQ(to_valid_utf8(part), part);
    streamed += part;
  }
  EXPECT_EQ(streamed + decoder.flush(), back);
}

class SmolLm2Tokenizer : public testing::Test {
 protected:
  void SetUp() override {
    KVIK_NEEDS_FILE(test::kSmolLm2);
    Result<std::shared_ptr<const Model>> model =
        Model::load(test::kSmolLm2.path().string(), {.check_weights = false});
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(model).value();
    tokenizer_ = &model_->tokenizer();
  }

  std::shared_ptr<const Model> model_;
  const Tokenizer* tokenizer_ = nullptr;
};

TEST_F(SmolLm2Tokenizer, GivesTheGoldenIdsAndTheTextBack) {
  const std::vector<json> lines = read_lines("smollm2-135m-instruct-q4_1/tokenizer.jsonl");
  ASSERT_EQ(lines.size(), 170U);
  for (const json& line : lines) check_line(*tokenizer_, line);
}

TEST_F(SmolLm2Tokenizer, GivesTheGoldenIdsForRenderedChats) {
  const std::vector<json> lines = read_lines("smollm2-135m-instruct-q4_1/chat.jsonl");
  ASSERT_EQ(lines.size(), 10U);
  for (const json& line : lines) {
    EXPECT_EQ(encode(*tokenizer_, line.at("prompt_generate").get<std::string>(), true),
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
      const auto content = message.at("content").get<std::string>();
      input.messages.emplace_back(message.at("role").get<std::string>(), content);
      spells_control |= content.find("<|im_") != std::string::npos;
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

// 262144 pieces merged by score, read from the model file.
TEST(Gemma3Tokenizer, GivesTheGoldenIdsAndTheTextBack) {
  KVIK_NEEDS_FILE(test::kGemma3);
  const std::filesystem::path path = test::kGemma3.path();
  const Result<GgufFile> file = GgufFile::open(path.string());
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  Result<Vocabulary> vocabulary = read_vocabulary(*file);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status().to_string();
  const Result<Tokenizer> tokenizer = Tokenizer::create(std::move(vocabulary).value());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  ASSERT_EQ(tokenizer->vocab_size(), 262144);
  EXPECT_FALSE(tokenizer->adds_space_prefix());
  const std::vector<json> lines = read_lines("gemma3-270m-q4_k_m/tokenizer.jsonl");
  ASSERT_EQ(lines.size(), 170U);
  for (const json& line : lines) check_line(*tokenizer, line);
}

// tools/make_nfc_tokens.py: a tokenizer made as Qwen 2's is, and texts that are not in form C.
TEST(NfcTokens, AreThoseOfHuggingFaceTokenizers) {
  const std::vector<json> lines = read_lines("nfc/tokens.jsonl");
  ASSERT_EQ(lines.size(), 333U);
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "qwen2";
  lines[0].at("pieces").get_to(vocabulary.pieces);
  lines[0].at("token_types").get_to(vocabulary.token_types);
  lines[0].at("merges").get_to(vocabulary.merges);
  vocabulary.add_bos = false;
  const Result<Tokenizer> tokenizer = Tokenizer::create(std::move(vocabulary));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  for (size_t i = 1; i < lines.size(); ++i) {
    const auto text = lines[i].at("text").get<std::string>();
    SCOPED_TRACE(lines[i].dump(-1, ' ', true));
    EXPECT_EQ(encode(*tokenizer, text, false), lines[i].at("ids").get<std::vector<TokenId>>());
    EXPECT_EQ(encode(*tokenizer, text, true),
              lines[i].at("ids_special").get<std::vector<TokenId>>());
  }
}

}  // namespace
}  // namespace kvik
