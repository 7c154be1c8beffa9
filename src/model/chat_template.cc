#include "kvik/model/chat_template.h"

#include <algorithm>
#include <chrono>

#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/lexer.h"
#include "model/jinja/parser.h"
#include "model/jinja/reads.h"

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

Value to_value(const ChatValue& value, int depth = 0) {
  if (depth > jinja::kMaxDepth - 2) {
    jinja::refuse("the input nests deeper than " + std::to_string(jinja::kMaxDepth - 2), 0);
  }
  struct Convert {
    int depth;
    Value operator()(std::nullptr_t) const { return Value(jinja::None{}); }
    Value operator()(bool boolean) const { return Value(boolean); }
    Value operator()(int64_t integer) const { return Value(integer); }
    Value operator()(double real) const { return Value(real); }
    Value operator()(const std::string& text) const { return Value(jinja::Text(text, false)); }
    Value operator()(const ChatArray& array) const {
      jinja::List list;
      for (const ChatValue& item : array) list.items.push_back(to_value(item, depth + 1));
      return Value(std::move(list));
    }
    Value operator()(const ChatObject& object) const {
      jinja::Dict dict;
      for (const auto& [key, item] : object) {
        dict.items.emplace_back(Value(jinja::Text(key, false)), to_value(item, depth + 1));
      }
      return Value(std::move(dict));
    }
  };
  return std::visit(Convert{depth}, value.data);
}

jinja::Dict message_dict(const ChatMessage& message, jinja::KeyUse& use) {
  jinja::Dict dict;
  for (const auto& [key, value] : message.fields) {
    dict.items.emplace_back(Value(jinja::Text(key, false)), to_value(value));
  }
  dict.use = &use;
  return dict;
}

size_t bytes_of(const ChatValue& value) {
  size_t bytes = sizeof(ChatValue);
  if (const auto* text = std::get_if<std::string>(&value.data)) bytes += text->size();
  if (const auto* array = std::get_if<ChatArray>(&value.data)) {
    for (const ChatValue& item : *array) bytes += bytes_of(item);
  }
  if (const auto* object = std::get_if<ChatObject>(&value.data)) {
    for (const auto& [key, item] : *object) bytes += key.size() + bytes_of(item);
  }
  return bytes;
}

size_t input_bytes(const ChatInput& input) {
  size_t bytes = input.bos_token.size() + input.eos_token.size();
  for (const ChatMessage& message : input.messages) {
    for (const auto& [key, value] : message.fields) bytes += key.size() + bytes_of(value);
  }
  for (const auto& [name, value] : input.variables) bytes += name.size() + bytes_of(value);
  return bytes;
}

jinja::Variables make_globals(const ChatInput& input, jinja::KeyUse& use) {
  jinja::List messages;
  for (const ChatMessage& message : input.messages) {
    messages.items.emplace_back(message_dict(message, use));
  }
  jinja::Variables globals;
  globals.emplace_back("messages", Value(std::move(messages)));
  globals.emplace_back("add_generation_prompt", Value(input.add_generation_prompt));
  globals.emplace_back("bos_token", Value(jinja::Text(input.bos_token, true)));
  globals.emplace_back("eos_token", Value(jinja::Text(input.eos_token, true)));
  for (const char* name : {"tools", "documents"}) {
    if (!input.variables.contains(name)) globals.emplace_back(name, Value(jinja::None{}));
  }
  for (const auto& [name, value] : input.variables) globals.emplace_back(name, to_value(value));
  return globals;
}

Status check_variables(const ChatInput& input) {
  for (const char* name : {"messages", "add_generation_prompt", "bos_token", "eos_token"}) {
    if (input.variables.contains(name)) {
      return invalid_argument("the chat variable \"" + std::string(name) +
                              "\" is set by the call itself");
    }
  }
  return {};
}

// Whether leaving it out loses nothing.
bool holds_nothing(const ChatValue& value) {
  const auto* array = std::get_if<ChatArray>(&value.data);
  return value.is_null() || (array != nullptr && array->empty());
}

bool is_tool_result(const ChatMessage& message) {
  return std::any_of(message.fields.begin(), message.fields.end(), [](const auto& field) {
    const auto* text = std::get_if<std::string>(&field.second.data);
    return field.first == "role" && text != nullptr && *text == "tool";
  });
}

// An error that names the first part of `input` that nothing reads.
Status check_unread(const ChatInput& input, const jinja::Reads& reads, const jinja::KeyUse& use) {
  for (const auto& [name, value] : input.variables) {
    if (reads.names.contains(name) || holds_nothing(value)) continue;
    return invalid_argument("nothing reads \"" + name +
                            "\": the model's chat template does not name it; leave it out");
  }
  for (size_t i = 0; i < input.messages.size(); ++i) {
    const bool tool = is_tool_result(input.messages[i]);
    for (const auto& [key, value] : input.messages[i].fields) {
      if (key == "role" || key == "content" || holds_nothing(value)) continue;
      if (tool && (key == "tool_call_id" || key == "name")) continue;
      if (reads.message_keys.contains(key) || use.contains(key)) continue;
      return invalid_argument("nothing reads \"" + key + "\" of message " + std::to_string(i + 1) +
                              ": the model's chat template does not name it; leave it out, or say "
                              "it in \"content\"");
    }
  }
  return {};
}

jinja::LocalTime local_time(const ChatInput& input) {
  if (input.local_time) return {*input.local_time, 0};
  const auto now = std::chrono::system_clock::now();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const std::time_t time = std::chrono::system_clock::to_time_t(seconds);
  jinja::LocalTime local{};
  localtime_r(&time, &local.calendar);
  local.microseconds = static_cast<int>(
      std::chrono::duration_cast<std::chrono::microseconds>(now - seconds).count());
  return local;
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
  jinja::Reads reads;
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
    impl->reads = jinja::find_reads(impl->block);
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
    jinja::KeyUse use;
    jinja::Evaluator evaluator(make_globals(input, use), impl_->limits.output_bytes,
                               local_time(input), budget);
    const jinja::Text text = evaluator.render(impl_->block);
    if (!input.allow_unread) {
      if (Status status = check_unread(input, impl_->reads, use); !status.ok()) return status;
    }
    return to_rendered(text);
  } catch (const jinja::TemplateError& error) {
    return to_status(error, impl_->source);
  }
}

}  // namespace kvik
