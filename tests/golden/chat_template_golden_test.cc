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

using nlohmann::ordered_json;

// As in the GGUF file of SmolLM2-135M-Instruct.
constexpr const char* kSmolLm2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}";

std::vector<ordered_json> read_lines(const std::string& name) {
  std::ifstream in(std::string(KVIK_GOLDEN_DIR) + "/" + name);
  std::vector<ordered_json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(ordered_json::parse(line));
  return lines;
}

ChatValue to_value(const ordered_json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    ChatArray array;
    for (const ordered_json& item : value) array.push_back(to_value(item));
    return array;
  }
  ChatObject object;
  for (const auto& [key, item] : value.items()) object.emplace_back(key, to_value(item));
  return value.is_null() ? ChatValue() : ChatValue(std::move(object));
}

std::vector<ChatMessage> read_messages(const ordered_json& messages) {
  std::vector<ChatMessage> result;
  for (const ordered_json& message : messages) {
    result.emplace_back(std::get<ChatObject>(to_value(message).data));
  }
  return result;
}

ChatInput read_input(const ordered_json& line) {
  ChatInput input;
  input.allow_unread = true;
  // 26 Jul 2024, 09:05:07, a Friday, as in tools/make_chat_template_cases.py.
  input.local_time = std::tm{.tm_sec = 7,
                             .tm_min = 5,
                             .tm_hour = 9,
                             .tm_mday = 26,
                             .tm_mon = 6,
                             .tm_year = 124,
                             .tm_wday = 5,
                             .tm_yday = 207,
                             .tm_isdst = 0,
                             .tm_gmtoff = 0,
                             .tm_zone = nullptr};
  input.messages = read_messages(line.at("messages"));
  input.add_generation_prompt = line.at("add_generation_prompt");
  input.bos_token = line.at("bos_token");
  input.eos_token = line.at("eos_token");
  for (const auto& [name, value] : line.at("variables").items()) {
    input.variables[name] = to_value(value);
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
  const std::vector<ordered_json> lines = read_lines("smollm2-135m-instruct-q4_1/chat.jsonl");
  ASSERT_EQ(lines.size(), 10U);
  for (const ordered_json& line : lines) {
    ChatInput input;
    input.messages = read_messages(line.at("messages"));
    EXPECT_EQ(render(kSmolLm2, input).value(), line.at("prompt")) << line.at("name");
    input.add_generation_prompt = true;
    EXPECT_EQ(render(kSmolLm2, input).value(), line.at("prompt_generate")) << line.at("name");
  }
}

// Where Jinja gives text, so must we, and the same. Where Jinja fails, it must fail.
TEST(ChatTemplateGolden, DoesWhatJinjaDoesForTemplatesWrittenByHand) {
  int count = 0;
  for (const ordered_json& line : read_lines("chat_template/cases.jsonl")) {
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

// What Jinja renders may be refused here, as "unsupported", but never becomes another text.
TEST(ChatTemplateGolden, NeverDiffersFromJinjaForRandomTemplates) {
  int same = 0;
  int refused = 0;
  for (const ordered_json& line : read_lines("chat_template/cases.jsonl")) {
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
