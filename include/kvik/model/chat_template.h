// Chat templates: a model's own description of how messages become a prompt, in Jinja.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/model/tokenizer.h"

namespace kvik {

struct ChatValue;
using ChatArray = std::vector<ChatValue>;
using ChatObject = std::vector<std::pair<std::string, ChatValue>>;  // in the order of its text

// A value of JSON, as templates see it. Strings are UTF-8.
struct ChatValue {
  ChatValue() = default;  // null
  ChatValue(std::nullptr_t) {}
  ChatValue(bool value) : data(value) {}
  ChatValue(int value) : data(int64_t{value}) {}
  ChatValue(int64_t value) : data(value) {}
  ChatValue(double value) : data(value) {}
  ChatValue(const char* value) : data(std::string(value)) {}
  ChatValue(std::string value) : data(std::move(value)) {}
  ChatValue(ChatArray value) : data(std::move(value)) {}
  ChatValue(ChatObject value) : data(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(data); }

  std::variant<std::nullptr_t, bool, int64_t, double, std::string, ChatArray, ChatObject> data;
};

// Role ("system", "user", "assistant", "tool", ...), content (mostly text), and whatever else the
// template reads: tool_calls, tool_call_id, name, reasoning_content, ...
struct ChatMessage {
  ChatMessage(std::string role, std::string content)
      : fields{{"role", std::move(role)}, {"content", std::move(content)}} {}
  explicit ChatMessage(ChatObject fields_in_order) : fields(std::move(fields_in_order)) {}

  ChatObject fields;
};

struct ChatInput {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = false;
  std::string bos_token, eos_token;  // as spelled in the vocabulary; empty if there is none
  // Further variables that templates know, for example tools, documents and enable_thinking. A name
  // of the four above is invalid_argument. tools and documents are null if they are not given.
  std::map<std::string, ChatValue> variables;
  // What strftime_now writes, as localtime_r() fills it in. nullopt: the system's clock and zone.
  std::optional<std::tm> local_time;
  // Whether variables and fields of messages that the template never reads are left out of the
  // prompt (see ChatTemplate::render) instead of refused.
  bool allow_unread = false;
};

// Model files are not trusted: what a template may cost.
struct ChatTemplateLimits {
  size_t source_bytes = size_t{1} << 20;
  size_t output_bytes = size_t{64} << 20;
  // Steps and copied bytes, roughly; the input adds 64 for each of its bytes.
  int64_t work = int64_t{1} << 28;
};

// The prompt, cut by origin: trusted spans were written by the template (and are the BOS and EOS
// token), the others came out of a message or a variable. So the tokenizer can find the template's
// control tokens and none that a message spells.
class KVIK_API RenderedChat {
 public:
  struct Span {
    size_t begin, end;
    bool trusted;
  };

  RenderedChat(std::string text, std::vector<Span> spans)
      : text_(std::move(text)), spans_(std::move(spans)) {}

  const std::string& text() const { return text_; }
  // For Tokenizer::encode_spans; valid as long as this object is neither changed nor moved.
  std::vector<TextSpan> spans() const;

 private:
  std::string text_;
  std::vector<Span> spans_;
};

// The language is Jinja 3.1 as chat templates are rendered elsewhere: in its immutable sandbox,
// with trim_blocks and lstrip_blocks, without escaping, with break, continue, "generation",
// raise_exception and strftime_now, and with tojson as json.dumps writes it (docs/models.md, "Chat
// templates", names what is left out). What is not Jinja is refused by parse(); a filter, test, tag
// or function that does not exist here, when it is reached. Both name the line and column.
//
// Immutable after parse(): any number of threads may render at the same time.
class KVIK_API ChatTemplate {
 public:
  // Errors: unsupported (nesting beyond the limits, or a construct that only this reader refuses),
  // corrupt (not Jinja); the message says what and at which line and column.
  static Result<ChatTemplate> parse(std::string_view source, const ChatTemplateLimits& limits = {});

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Errors: invalid_argument (the template calls raise_exception, `input` is wrong, or nothing
  // reads a part of it), corrupt (an operation that Jinja refuses too, for example adding a string
  // to a number), unsupported (one that only this engine refuses, or a limit).
  //
  // A variable is read if the template names it; a field of a message, if the template names it
  // where the value may be a message, or looks at the message as a whole. Exempt are what holds
  // nothing (null, an empty list), role and content, and the labels tool_call_id and name of a
  // message whose role is "tool", which only repeat what the call said.
  Result<RenderedChat> render(const ChatInput& input) const;

 private:
  class Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace kvik
