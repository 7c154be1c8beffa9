// kvik tokenize: text to token ids.
#include <memory>

#include "commands.h"
#include "options.h"
#include "prompt.h"
#include "terminal_text.h"

namespace kvik::cli {
namespace {

struct TokenizeOptions {
  std::string model, output;
  PromptOptions prompt;
};

int tokenize(const TokenizeOptions& options) {
  if (!options.prompt.is_given()) return usage_error("tokenize: give a text with -p or -f");
  Result<std::string> text = prompt_text(options.prompt);
  if (!text.ok()) return fail(text.status());
  Result<std::shared_ptr<const Model>> model = load_header(options.model);
  if (!model.ok()) return fail(model.status());
  const Tokenizer& tokenizer = (*model)->tokenizer();
  EncodeOptions encode;
  encode.parse_special = options.prompt.special;
  Result<std::vector<TokenId>> ids = tokenizer.encode(*text, encode);
  if (!ids.ok()) return fail(ids.status());
  Output out;
  if (options.output == "json") {
    out.write_json_line({{"ids", *ids}});
    return out.finish();
  }
  std::string lines;
  for (const TokenId id : *ids) {
    lines += format("%6d  ", id) + quoted(tokenizer.token_bytes(id).value()) + "\n";
  }
  out.write(lines);
  return out.finish();
}

}  // namespace

Command add_tokenize(CLI::App& program) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = program.add_subcommand("tokenize", "Print the tokens of a text");
  add_model_option(*command, options->model);
  add_prompt_options(*command, options->prompt, /*ids_too=*/false);
  add_output_option(*command, options->output, {"text", "json"});
  return {command, [options] { return tokenize(*options); }};
}

}  // namespace kvik::cli
