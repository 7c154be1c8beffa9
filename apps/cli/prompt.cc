#include "prompt.h"

#include "cli.h"
#include "kvik/model/stream_decoder.h"
#include "options.h"

namespace kvik::cli {

bool PromptOptions::is_given() const {
  return text_option->count() > 0 || file_option->count() > 0 ||
         (ids_option != nullptr && ids_option->count() > 0);
}

void add_prompt_options(CLI::App& command, PromptOptions& options, bool ids_too) {
  options.text_option = command.add_option("-p,--prompt", options.text, "Text")->type_name("TEXT");
  options.file_option =
      command.add_option("-f,--file", options.file, "File with the text (-: standard input)")
          ->type_name("FILE")
          ->excludes(options.text_option);
  options.special_option = command.add_flag(
      "--special", options.special, "Control tokens written out in the text become those tokens");
  if (!ids_too) return;
  options.ids_option =
      command.add_option("--ids", options.ids_file, "File with a JSON array of token ids")
          ->type_name("FILE")
          ->excludes(options.text_option)
          ->excludes(options.file_option)
          ->excludes(options.special_option);
}

Result<std::string> prompt_text(const PromptOptions& options) {
  if (options.text_option->count() == 0) return read_text(options.file);
  if (to_valid_utf8(options.text) != options.text) {
    return Status(StatusCode::invalid_argument, "the text of -p is not UTF-8");
  }
  return options.text;
}

Result<std::vector<TokenId>> prompt_ids(const PromptOptions& options, const Model& model) {
  const bool from_ids = options.ids_option != nullptr && options.ids_option->count() > 0;
  Result<std::vector<TokenId>> ids = std::vector<TokenId>();
  if (from_ids) {
    ids = read_ids(options.ids_file);
  } else {
    Result<std::string> text = prompt_text(options);
    if (!text.ok()) return text.status();
    EncodeOptions encode;
    encode.parse_special = options.special;
    ids = model.tokenizer().encode(*text, encode);
    if (ids.ok() && model.tokenizer().has_double_bos(*ids)) {
      warn("the text spells out the token for its beginning, which the model adds too");
    }
  }
  if (ids.ok() && ids->empty()) {
    return invalid_argument("the prompt is empty; this model needs at least one token");
  }
  return ids;
}

}  // namespace kvik::cli
