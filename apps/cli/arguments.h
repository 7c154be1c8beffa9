// The words of the command line, option by option, before the parser sees them: which option each
// names, which variables count, and what the user called each option, for messages.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvik/core/status.h"
#include "llama_options.h"

namespace kvik::cli {

struct GivenOption {
  CLI::Option* option = nullptr;
  std::string value;  // empty for a flag
  std::string name;   // as typed, or the variable
  bool is_variable = false;
};

struct Arguments {
  std::vector<GivenOption> options;
  std::vector<std::string> positionals;
  std::vector<LlamaMode> modes;
  bool wants_help = false;

  // Of the command line or of a variable.
  bool has(std::string_view long_name) const;
};

// Options of the command, of llama.cpp where Kvik has the same or needs none, and positionals.
// Errors: invalid_argument for an option that there is not (with the nearest one), for one of
// llama.cpp that cannot be served (with the reason), for a missing value, for an option given twice
// that counts once.
Result<Arguments> read_arguments(CLI::App& command, std::span<const std::string> words);

// Errors: invalid_argument for two options that exclude each other, for one that is missing, and
// for a mode that the prompt contradicts.
Status check_together(const CLI::App& command, const Arguments& arguments);

// The words that the parser gets: each option by its long name. From here on name_given() knows
// what the user called an option.
std::vector<std::string> parser_words(const CLI::App& command, const Arguments& arguments);

// "-c", "--ctx-size" or "KVIK_CTX_SIZE", as the user gave the option; its long name if nobody did.
std::string name_given(const CLI::Option& option);
// Its value as typed; empty if nobody gave it.
std::string value_given(const CLI::Option& option);
// The parser's message with its names replaced by those.
std::string in_given_names(const CLI::App& command, std::string message);

// "--ctx-size", or the name of a positional.
std::string long_name(const CLI::Option& option);
// All names, as typed.
std::vector<std::string> names_of(const CLI::Option& option);
// The candidate that takes the fewest changes of a letter. Requires: at least one candidate.
std::string nearest(std::string_view name, std::span<const std::string> candidates);
size_t edit_distance(std::string_view a, std::string_view b);
// On or off, as a flag's value; nullopt for another word.
std::optional<bool> parse_switch(std::string_view word);

}  // namespace kvik::cli
