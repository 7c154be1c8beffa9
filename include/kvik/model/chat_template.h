// Chat templates: a model's own description of how messages become a prompt, in a subset of Jinja.
#pragma once

#include <cstddef>
#include <cstdint>
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

struct ChatMessage {
  std::string role;     // "system", "user", "assistant", ...
  std::string content;  // UTF-8
};

struct ChatInput {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = false;
  std::string bos_token, eos_token;  // as spelled in the vocabulary; empty if there is none
  // Further variables that some templates know, for example enable_thinking. A name that the call
  // defines itself (messages, tools, documents, and the three above) is invalid_argument.
  std::map<std::string, std::variant<bool, int64_t, std::string>> variables;
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

// What is understood, with the meaning of Jinja 3.1 as chat templates are rendered elsewhere
// (trim_blocks and lstrip_blocks on, no escaping, the plain Undefined, tojson without HTML escapes
// and with non-ASCII text as it is):
//   tags       for (two targets, `if`, else), if/elif/else, set (name, attribute, block)
//   loop.      index, index0, revindex, revindex0, first, last, length, previtem, nextitem
//   operators  + - * // % ~ == != < <= > >= in, not in, and, or, not, a if b else c
//   access     a.b, a["b"], a[0], a[1:2:3]
//   literals   strings, integers, true, false, none, lists, mappings with string keys
//   filters    default (d), first, items, join, last, length (count), list, lower, replace,
//              string, tojson, trim, upper; select and reject with "equalto", before join, list
//              or first
//   tests      boolean, defined, false, integer, iterable, mapping, none, number, sequence,
//              string, true, undefined
//   methods    endswith, lower, lstrip, replace, rstrip, split, startswith, strip, upper;
//              get, items, keys, values
//   functions  namespace, raise_exception
// Everything else is refused by name and position. Variables: those of ChatInput; tools and
// documents are none.
//
// Immutable after parse(): any number of threads may render at the same time.
class KVIK_API ChatTemplate {
 public:
  // Errors: unsupported (a construct outside the subset, or a limit), corrupt (not Jinja); the
  // message says what and at which line and column.
  static Result<ChatTemplate> parse(std::string_view source, const ChatTemplateLimits& limits = {});

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Errors: invalid_argument (the template calls raise_exception, or `input` is wrong), corrupt (an
  // operation that Jinja refuses too, for example adding a string to a number), unsupported (one
  // that only this subset refuses, or a limit).
  Result<RenderedChat> render(const ChatInput& input) const;

 private:
  class Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace kvik
