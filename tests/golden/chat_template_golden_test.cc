// Chat templates against Jinja 3.1.6.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvik/model/chat_template.h"

namespace kvik {
namespace {

using nlohmann::json;

// As in the GGUF file of SmolLM2-135M-Instruct.
constexpr const char* kSmolLm2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}";

std::vector<json> read_lines(const std::string& name) {
  std::ifstream in(std::string(KVIK_GOLDEN_DIR) + "/" + name);
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

std::vector<ChatMessage> read_messages(const json& messages) {
  std::vector<ChatMessage> result;
  for (const json& message : messages)
    result.push_back({message.at("role"), message.at("content")});
  return result;
}

ChatInput read_input(const json& line) {
  ChatInput input;
  input.messages = read_messages(line.at("messages"));
  input.add_generation_prompt = line.at("add_generation_prompt");
  input.bos_token = line.at("bos_token");
  input.eos_token = line.at("eos_token");
  for (const auto& [name, value] : line.at("variables").items()) {
    if (value.is_boolean()) {
      input.variables[name] = value.get<bool>();
    } else if (value.is_number_integer()) {
      input.variables[name] = value.get<int64_t>();
    } else {
      input.variables[name] = value.get<std::string>();
    }
  }
  return input;
}

Result<std::string> render(const std::string& source, const ChatInput& input) {
  const Result<ChatTemplate> chat_template = ChatTemplate::parse(source);
  if (!chat_template.ok()) return chat_template.status();
  const Result<RenderedChat> rendered = chat_template.value().render(input);
  if (!rendered.ok()) return rendered.status();
  std::string joined;
  for (const TextSpan& span : rendered.value().spans()) joined += span.text;
  EXPECT_EQ(joined, rendered.value().text());
  return rendered.value().text();
}

TEST(ChatTemplateGolden, RendersTheChatsOfSmolLm2) {
  const std::vector<json> lines = read_lines("smollm2-135m-instruct-q4_1/chat.jsonl");
  ASSERT_EQ(lines.size(), 10U);
  for (const json& line : lines) {
    ChatInput input;
    input.messages = read_messages(line.at("messages"));
    EXPECT_EQ(render(kSmolLm2, input).value(), line.at("prompt")) << line.at("name");
    input.add_generation_prompt = true;
    EXPECT_EQ(render(kSmolLm2, input).value(), line.at("prompt_generate")) << line.at("name");
  }
}

// Where Jinja gives text, so must the subset, and the same. Where Jinja fails, it must fail.
TEST(ChatTemplateGolden, DoesWhatJinjaDoesForTemplatesWrittenByHand) {
  int count = 0;
  for (const json& line : read_lines("chat_template/cases.jsonl")) {
    if (line.at("kind") == "random") continue;
    ++count;
    const auto source = line.at("template").get<std::string>();
    const Result<std::string> output = render(source, read_input(line));
    if (line.contains("error")) {
      EXPECT_FALSE(output.ok()) << source << "\ngave " << output.value();
    } else if (output.ok()) {
      EXPECT_EQ(output.value(), line.at("output").get<std::string>()) << source;
    } else {
      ADD_FAILURE() << source << "\n" << output.status().to_string();
    }
  }
  EXPECT_GE(count, 120);
}

// The subset may refuse what Jinja renders, as "unsupported", but never give another text.
TEST(ChatTemplateGolden, NeverDiffersFromJinjaForRandomTemplates) {
  int same = 0;
  int refused = 0;
  for (const json& line : read_lines("chat_template/cases.jsonl")) {
    if (line.at("kind") != "random") continue;
    const auto source = line.at("template").get<std::string>();
    const Result<std::string> output = render(source, read_input(line));
    if (output.ok()) {
      ASSERT_FALSE(line.contains("error")) << source << "\ngave " << output.value();
      EXPECT_EQ(output.value(), line.at("output").get<std::string>()) << source;
      ++same;
    } else if (output.status().code() == StatusCode::unsupported) {
      ++refused;
    } else {
      EXPECT_TRUE(line.contains("error")) << source << "\n" << output.status().to_string();
    }
  }
  RecordProperty("same", same);
  RecordProperty("refused", refused);
  EXPECT_GE(same, 100);
}

}  // namespace
}  // namespace kvik
