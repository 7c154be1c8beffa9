// Chats from files and options: messages, tools, variables and the template of a request.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/model/chat_template.h"
#include "kvik/model/model.h"

namespace kvik::cli {

// --template-var, --tools, --chat-template-file.
struct ChatOptions {
  std::vector<std::string> variables;  // NAME=JSON
  std::string tools_file, template_file;
  const CLI::Option *variables_option = nullptr, *tools_option = nullptr,
                    *template_option = nullptr;
  // Empty, or the first of the three that is given.
  std::string given() const;
};
void add_chat_options(CLI::App& command, ChatOptions& options);

// What the options say, read and checked: needs no model.
struct ChatSettings {
  std::map<std::string, ChatValue> variables;
  std::shared_ptr<const ChatTemplate> own_template;  // nullptr: the model's
};
// Errors: io_error, corrupt and invalid_argument naming the file or option.
Result<ChatSettings> read_chat_settings(const ChatOptions& options);

struct ChatRequest {
  std::vector<ChatMessage> messages;
  // Of the object around the messages: its other members and those of chat_template_kwargs.
  std::map<std::string, ChatValue> variables;
  std::optional<bool> add_generation_prompt;
};
// A JSON array of messages, or an object that holds one as "messages" ("-": standard input).
Result<ChatRequest> read_chat_request(const std::string& path);

// The messages as the template writes them. Errors: as ChatTemplate::render.
Result<RenderedChat> render_chat(const Model& model, const ChatSettings& settings,
                                 std::vector<ChatMessage> messages, bool add_generation_prompt);
// The tokens of that, ready for an answer. Content of messages never becomes control tokens, and
// the template writes BOS itself where it wants one.
Result<std::vector<TokenId>> chat_ids(const Model& model, const ChatSettings& settings,
                                      std::vector<ChatMessage> messages);

}  // namespace kvik::cli
