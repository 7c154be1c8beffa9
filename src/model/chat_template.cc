#include "kvik/model/chat_template.h"

#include <algorithm>
#include <array>

#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/lexer.h"
#include "model/jinja/parser.h"

namespace kvik {
namespace {

using jinja::Value;

Status to_status(const jinja::TemplateError& error, std::string_view source) {
  const std::string_view before = source.substr(0, error.offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column =
      newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  return {error.code, "chat template, line " + std::to_string(line) + ", column " +
                          std::to_string(column) + ": " + error.message};
}

Value message_value(const ChatMessage& message) {
  jinja::Dict dict;
  dict.items.emplace_back(jinja::Text("role", true), Value(jinja::Text(message.role, false)));
  dict.items.emplace_back(jinja::Text("content", true), Value(jinja::Text(message.content, false)));
  return Value(std::move(dict));
}

Value variable_value(const std::variant<bool, int64_t, std::string>& variable) {
  if (const bool* boolean = std::get_if<bool>(&variable)) return Value(*boolean);
  if (const int64_t* integer = std::get_if<int64_t>(&variable)) return Value(*integer);
  return Value(jinja::Text(std::get<std::string>(variable), false));
}

size_t input_bytes(const ChatInput& input) {
  size_t bytes = input.bos_token.size() + input.eos_token.size();
  for (const ChatMessage& message : input.messages) {
    bytes += message.role.size() + message.content.size() + sizeof(ChatMessage);
  }
  for (const auto& item : input.variables) {
    const auto* text = std::get_if<std::string>(&item.second);
    bytes += item.first.size() + (text != nullptr ? text->size() : 0);
  }
  return bytes;
}

jinja::Variables make_globals(const ChatInput& input) {
  jinja::List messages;
  for (const ChatMessage& message : input.messages) {
    messages.items.push_back(message_value(message));
  }
  jinja::Variables globals;
  globals.emplace_back("messages", Value(std::move(messages)));
  globals.emplace_back("add_generation_prompt", Value(input.add_generation_prompt));
  globals.emplace_back("bos_token", Value(jinja::Text(input.bos_token, true)));
  globals.emplace_back("eos_token", Value(jinja::Text(input.eos_token, true)));
  globals.emplace_back("tools", Value(jinja::None{}));
  globals.emplace_back("documents", Value(jinja::None{}));
  for (const auto& item : input.variables) {
    globals.emplace_back(item.first, variable_value(item.second));
  }
  return globals;
}

Status check_variables(const ChatInput& input) {
  static constexpr std::array<const char*, 6> kReserved = {
      "messages", "add_generation_prompt", "bos_token", "eos_token", "tools", "documents"};
  for (const char* name : kReserved) {
    if (input.variables.contains(name)) {
      return invalid_argument("the chat variable \"" + std::string(name) +
                              "\" is set by the call itself");
    }
  }
  return {};
}

RenderedChat to_rendered(const jinja::Text& text) {
  std::vector<RenderedChat::Span> spans;
  size_t begin = 0;
  for (const jinja::Text::Run& run : text.runs()) {
    spans.push_back({begin, run.end, run.trusted});
    begin = run.end;
  }
  return {text.bytes(), std::move(spans)};
}

}  // namespace

std::vector<TextSpan> RenderedChat::spans() const {
  std::vector<TextSpan> result;
  result.reserve(spans_.size());
  for (const Span& span : spans_) {
    result.push_back(
        {std::string_view(text_).substr(span.begin, span.end - span.begin), span.trusted});
  }
  return result;
}

class ChatTemplate::Impl {
 public:
  std::string source;
  jinja::Block block;
  ChatTemplateLimits limits;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source,
                                         const ChatTemplateLimits& limits) {
  if (source.size() > limits.source_bytes) {
    return unsupported("chat template: " + std::to_string(source.size()) +
                       " bytes are more than the limit of " + std::to_string(limits.source_bytes));
  }
  auto impl = std::make_unique<Impl>();
  impl->source = jinja::normalise_source(source);
  impl->limits = limits;
  try {
    impl->block = jinja::parse(impl->source);
  } catch (const jinja::TemplateError& error) {
    return to_status(error, impl->source);
  }
  return ChatTemplate(std::move(impl));
}

Result<RenderedChat> ChatTemplate::render(const ChatInput& input) const {
  if (Status status = check_variables(input); !status.ok()) return status;
  constexpr int64_t kWorkPerInputByte = 64;
  const auto bytes = static_cast<int64_t>(
      std::min(input_bytes(input), static_cast<size_t>(impl_->limits.output_bytes)));
  const jinja::Budget budget(impl_->limits.work + kWorkPerInputByte * bytes);
  try {
    jinja::Evaluator evaluator(make_globals(input), impl_->limits.output_bytes, budget);
    return to_rendered(evaluator.render(impl_->block));
  } catch (const jinja::TemplateError& error) {
    return to_status(error, impl_->source);
  }
}

}  // namespace kvik
