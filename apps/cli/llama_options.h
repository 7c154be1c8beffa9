// Options of llama.cpp's programs that Kvik has under another name, needs not, or cannot serve.
// Those of the same name are not here. docs/cli.md has the list in words.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvik/core/status.h"

namespace kvik::cli {

struct LlamaOption {
  enum class Takes { nothing, value, maybe };  // maybe: on, off, auto or a digit
  enum class Effect {
    serve,         // `text` is our option, and its value where a blank follows
    idle,          // accepted with a note; `text` says why nothing changes
    refuse,        // `text` is the reason
    conversation,  // right without a prompt
    completion,    // right with a prompt, which is no message
    single_turn,   // --chat, right with a prompt
  };

  std::string_view names;  // apart by blanks
  Takes takes;
  Effect effect;
  std::string_view text;
  std::string_view only = "";  // of idle: values that change nothing; others are refused
};

// A wish about turns, to be looked at when it is known whether there is a prompt.
struct LlamaMode {
  LlamaOption::Effect effect;
  std::string name;  // as typed
};

struct LlamaVerdict {
  std::string serves;  // our long name, or empty
  std::optional<std::string> value;
  std::string note;
  std::optional<LlamaMode> mode;
};

std::span<const LlamaOption> llama_options();
// nullptr if llama.cpp has none of that name, or the command reads no model.
const LlamaOption* find_llama_option(const CLI::App& command, std::string_view name);
// Whether the next word belongs to it.
bool takes_value(const LlamaOption& option, std::string_view next_word);
bool needs_value(const LlamaOption& option);
// Errors: invalid_argument with the reason.
Result<LlamaVerdict> judge(const LlamaOption& option, const std::string& name,
                           const std::optional<std::string>& value);
// Errors: invalid_argument for a mode that the prompt, or its absence, contradicts.
Status check_modes(const CLI::App& command, std::span<const LlamaMode> modes, bool has_prompt,
                   bool is_chat);

}  // namespace kvik::cli
