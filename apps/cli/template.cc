// kvik template: messages as the model's own template writes them.
#include <memory>

#include "answer_text.h"
#include "chat_request.h"
#include "cli.h"
#include "commands.h"
#include "options.h"

namespace kvik::cli {
namespace {

struct TemplateOptions {
  std::string model, file, output;
  bool add_generation_prompt = false;
  ChatOptions chat;
};

int render(const TemplateOptions& options) {
  Result<ChatSettings> settings = read_chat_settings(options.chat);
  if (!settings.ok()) return fail_or_usage(settings.status());
  Result<ChatRequest> request = read_chat_request(options.file);
  if (!request.ok()) return fail(request.status());
  // What the command line says wins.
  settings->variables.merge(request->variables);
  Result<std::shared_ptr<const Model>> model = load_header(options.model);
  if (!model.ok()) return fail(model.status());
  Result<RenderedChat> chat =
      render_chat(**model, *settings, std::move(request->messages),
                  options.add_generation_prompt || request->add_generation_prompt.value_or(false));
  if (!chat.ok()) return fail(chat.status());
  Output out;
  if (options.output == "text") {
    AnswerText text(out);
    text.write(chat->text());
    text.end_line_on_terminal();
    return out.finish();
  }
  EncodeOptions encode;
  encode.add_special = false;
  Result<std::vector<TokenId>> ids = (*model)->tokenizer().encode_spans(chat->spans(), encode);
  if (!ids.ok()) return fail(ids.status());
  out.write_json_line({{"prompt", chat->text()}, {"ids", *ids}});
  return out.finish();
}

}  // namespace

Command add_template(CLI::App& program) {
  auto options = std::make_shared<TemplateOptions>();
  CLI::App* command = program.add_subcommand("template", "Print messages as the model reads them");
  add_model_option(*command, options->model);
  command
      ->add_option("-f,--file", options->file,
                   "JSON file with an array of messages, or with a request object that holds them "
                   "(-: standard input)")
      ->required()
      ->type_name("FILE");
  command->add_flag("--add-generation-prompt", options->add_generation_prompt,
                    "End where the assistant's answer begins");
  add_chat_options(*command, options->chat);
  add_output_option(*command, options->output, {"text", "json"});
  return {command, [options] { return render(*options); }};
}

}  // namespace kvik::cli
