// kvik perplexity: how surprised the model is by a text, chunk by chunk.
#include <cmath>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "kvik/engine/perplexity.h"
#include "numbers.h"
#include "options.h"
#include "prompt.h"

namespace kvik::cli {
namespace {

struct PerplexityOptions {
  EngineOptions engine;
  PromptOptions prompt;
  int chunks = 0;
  CLI::Option* chunks_option = nullptr;
  std::string output;
};

nlohmann::ordered_json to_json(const Perplexity& result, const PerplexityOptions& options) {
  nlohmann::ordered_json chunks = nlohmann::ordered_json::array();
  for (const ChunkNll& chunk : result.chunks) chunks.push_back({chunk.second_half, chunk.whole});
  return {{"ppl", result.ppl},
          {"ppl_error", result.ppl_error},
          {"ppl_whole", result.ppl_whole},
          {"context", options.engine.context},
          {"chunks", result.chunks.size()},
          {"chunk_nll", chunks},
          {"type_k", options.engine.kv.type_k},
          {"type_v", options.engine.kv.type_v}};
}

int measure(PerplexityOptions& options) {
  if (Status status = check(options.engine); !status.ok()) return usage_error(status.message());
  if (!options.prompt.is_given()) return usage_error("perplexity: give a text with -f");
  if (options.engine.context < 4) {
    return usage_error("perplexity: " + name_given(*options.engine.context_option) +
                       " must be at least 4");
  }
  // A whole text has one beginning; the chunks get theirs from the protocol.
  std::vector<TokenId> ids;
  Result<Engine> engine = make_engine(options.engine, [&](const Model& header, int context) {
    Result<std::vector<TokenId>> read = prompt_ids(options.prompt, header);
    if (!read.ok()) return read.status();
    ids = std::move(read).value();
    if (ids.size() >= static_cast<size_t>(context)) return Status();
    return invalid_argument(
        format("the text has %zu tokens; one chunk needs %d", ids.size(), context));
  });
  if (!engine.ok()) return fail(engine.status());
  Interrupt::install();

  Output out;
  Progress progress;
  const bool running = options.output == "text";
  bool has_begun = false;
  PerplexityParams params;
  params.context = options.engine.context;
  if (options.chunks_option->count() > 0) params.max_chunks = options.chunks;
  params.on_chunk = [&](const Perplexity& so_far, int num_chunks) {
    const size_t done = so_far.chunks.size();
    has_begun = true;
    if (running) return out.write(format("%s[%zu]%.4f", done > 1 ? "," : "", done, so_far.ppl));
    progress.show(format("chunk %zu of %d, perplexity %.4f", done, num_chunks, so_far.ppl));
    return true;
  };
  Result<Perplexity> result = perplexity(*engine->session, ids, params);
  progress.clear();
  if (!result.ok()) {
    if (running && has_begun) out.write("\n");
    return fail(result.status());
  }
  if (running) {
    out.write(format(
        "\nFinal estimate: PPL = %.4f +/- %.5f (second halves of %zu chunks of %d tokens; whole "
        "chunks: %.4f)\n",
        result->ppl, result->ppl_error, result->chunks.size(), params.context, result->ppl_whole));
  } else {
    out.write_json(to_json(*result, options));
  }
  return out.finish();
}

}  // namespace

Command add_perplexity(CLI::App& program) {
  auto options = std::make_shared<PerplexityOptions>();
  CLI::App* command = program.add_subcommand(
      "perplexity", "Print the perplexity of a text, in chunks of -c tokens");
  add_engine_options(*command, options->engine, /*default_context=*/512);
  add_prompt_options(*command, options->prompt, /*ids_too=*/true);
  options->chunks_option =
      command->add_option("--chunks", options->chunks, "Only the first so many chunks")
          ->transform(integer_in(1, 1 << 30));
  add_output_option(*command, options->output, {"text", "json"});
  return {command, [options] { return measure(*options); }};
}

}  // namespace kvik::cli
