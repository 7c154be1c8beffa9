// Where a prompt comes from, and how it becomes tokens.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/model/model.h"

namespace kvik::cli {

// -p, -f, --ids (where `ids_too`), --special; at most one of the first three can be given.
struct PromptOptions {
  std::string text, file, ids_file;
  bool special = false;
  CLI::Option* text_option = nullptr;
  CLI::Option* file_option = nullptr;
  CLI::Option* ids_option = nullptr;
  CLI::Option* special_option = nullptr;

  bool is_given() const;
};
void add_prompt_options(CLI::App& command, PromptOptions& options, bool ids_too);

// The text of -p or -f. Errors: as read_text.
Result<std::string> prompt_text(const PromptOptions& options);
// The tokens. Errors: as prompt_text, read_ids and Tokenizer::encode; invalid_argument for a prompt
// of no tokens.
Result<std::vector<TokenId>> prompt_ids(const PromptOptions& options, const Model& model);

}  // namespace kvik::cli
