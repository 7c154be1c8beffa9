// kvik inspect: what a model file holds, and what its cache will take.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "arguments.h"
#include "commands.h"
#include "gguf_json.h"
#include "kv.h"
#include "kv_types.h"
#include "kvik/cache/size_prediction.h"
#include "kvik/model/ggml_type.h"
#include "kvik/model/gguf.h"
#include "kvik/model/stream_decoder.h"
#include "numbers.h"
#include "options.h"
#include "terminal_text.h"

namespace kvik::cli {
namespace {

using nlohmann::ordered_json;

struct InspectOptions {
  std::string model, output;
  bool all_arrays = false;
  int context = 0;        // 0: as trained
  int tokens = 0;         // 0: the whole context
  int prompt_tokens = 0;  // 0: all tokens
  int batch = 512;
  int block_size = 16;
  KvListOptions kv;
  std::string layout = "paged";
  const CLI::Option *block_size_option = nullptr, *layout_option = nullptr,
                    *tokens_option = nullptr, *prompt_tokens_option = nullptr;
};

struct KvRow {
  KvOptions kv;
  std::vector<int> wide_layers;
  int64_t bytes_per_token = 0;
  int64_t growing_bytes_per_token = 0;  // of layers without a window
  CacheSize size;
};

struct KvTable {
  int context = 0, tokens = 0, prompt_tokens = 0;
  std::string counted;  // what the ways keep beside packed rows
  std::vector<KvRow> rows;
};

// Arrays of more elements than this are counted, not shown, unless --arrays asks for them.
constexpr int64_t kMaxShown = 16;
constexpr int64_t kMaxShownInJson = 256;
constexpr size_t kMaxTextBytes = 200;

std::string type_name(const GgufTensor& tensor) {
  const GgmlTypeInfo* const info = ggml_type_info(tensor.type);
  return info != nullptr ? std::string(info->name) : format("type %u", tensor.type);
}

std::string shape_text(const GgufTensor& tensor) {
  std::string text;
  for (int d = 0; d < tensor.rank; ++d) {
    text += (d == 0 ? "" : " x ") + std::to_string(tensor.shape[static_cast<size_t>(d)]);
  }
  return text;
}

// The steps of a session: the prompt in batches, then single tokens.
std::vector<AppendRun> runs_of(const KvTable& table, int batch) {
  return {{table.prompt_tokens / batch, batch},
          {1, table.prompt_tokens % batch},
          {table.tokens - table.prompt_tokens, 1}};
}

Result<KvRow> predict(const Model& model, const InspectOptions& options, const KvTable& table,
                      const KvOptions& way) {
  KvRow row;
  row.kv = way;
  ModelCacheOptions cache;
  cache.format = way.format();
  cache.protection = way.protection(model.info());
  row.wide_layers = cache.protection.wide_layers;
  cache.block_size = options.block_size;
  cache.max_tokens = table.context;
  cache.contiguous = options.layout == "contiguous";
  cache.max_batch_tokens = options.batch;
  Result<std::vector<PagedCacheOptions>> caches = model.cache_options(cache);
  if (!caches.ok()) return caches.status();
  for (const PagedCacheOptions& one : *caches) {
    row.bytes_per_token += token_bytes(one.spec);
    if (!one.window) row.growing_bytes_per_token += token_bytes(one.spec);
    Result<CacheSize> size = predict_cache_size(one, runs_of(table, options.batch));
    if (!size.ok()) return size.status();
    row.size.num_tokens = size->num_tokens;
    row.size.used_blocks += size->used_blocks;
    row.size.committed_blocks += size->committed_blocks;
    row.size.nbytes += size->nbytes;
    row.size.committed_bytes += size->committed_bytes;
    row.size.exact_bytes += size->exact_bytes;
  }
  return row;
}

Result<KvTable> predict_all(const Model& model, const InspectOptions& options,
                            const std::vector<KvOptions>& ways) {
  KvTable table;
  table.context = options.context > 0 ? options.context : model.info().context_length;
  table.tokens = options.tokens > 0 ? options.tokens : table.context;
  table.prompt_tokens = options.prompt_tokens > 0 ? options.prompt_tokens : table.tokens;
  if (table.tokens > table.context) {
    return invalid_argument(format("%s %d is more than the context of %d",
                                   name_given(*options.tokens_option).c_str(), table.tokens,
                                   table.context));
  }
  if (table.prompt_tokens > table.tokens) {
    return invalid_argument(format("%s %d is more than the %d tokens in all",
                                   name_given(*options.prompt_tokens_option).c_str(),
                                   table.prompt_tokens, table.tokens));
  }
  table.counted = counted_text(ways, model.info());
  for (const KvOptions& way : ways) {
    Result<KvRow> row = predict(model, options, table, way);
    if (!row.ok()) return row.status();
    table.rows.push_back(std::move(row).value());
  }
  return table;
}

ordered_json kv_json(const InspectOptions& options, const KvTable& table) {
  ordered_json formats = ordered_json::array();
  for (const KvRow& row : table.rows) {
    formats.push_back({{"type_k", row.kv.type_k},
                       {"type_v", row.kv.type_v},
                       {"kv", row.kv.name()},
                       {"exact_first", row.kv.first},
                       {"exact_recent", row.kv.recent},
                       {"f16_layers", row.wide_layers},
                       {"bytes_per_token", row.bytes_per_token},
                       {"growing_bytes_per_token", row.growing_bytes_per_token},
                       {"committed_bytes", row.size.committed_bytes},
                       {"exact_bytes", row.size.exact_bytes},
                       {"nbytes", row.size.nbytes},
                       {"committed_blocks", row.size.committed_blocks},
                       {"used_blocks", row.size.used_blocks}});
  }
  return {{"context", table.context},
          {"tokens", table.tokens},
          {"prompt_tokens", table.prompt_tokens},
          {"batch_size", options.batch},
          {"layout", options.layout},
          {"block_size", options.block_size},
          {"formats", formats}};
}

ordered_json parts_json(const GgufFile& file) {
  ordered_json parts = ordered_json::array();
  for (int part = 0; part < file.num_parts(); ++part) {
    parts.push_back({{"file", text_json(file.part_name(part))}, {"bytes", file.part_bytes(part)}});
  }
  return parts;
}

// Of a model in several files; otherwise empty.
std::string parts_text(const GgufFile& file) {
  if (file.num_parts() == 1) return "";
  std::string text = format("\nParts (%d)\n", file.num_parts());
  for (int part = 0; part < file.num_parts(); ++part) {
    text += "  " + one_line(file.part_name(part)) +
            format("  %lld bytes (%s)\n", static_cast<long long>(file.part_bytes(part)),
                   bytes_text(file.part_bytes(part)).c_str());
  }
  return text;
}

ordered_json file_json(const InspectOptions& options, const GgufFile& file) {
  ordered_json metadata = ordered_json::object();
  ordered_json nameless = ordered_json::array();  // no JSON object has keys that are not UTF-8
  for (const GgufEntry& entry : file.metadata()) {
    ordered_json value = value_json(entry.value, options.all_arrays ? INT64_MAX : kMaxShownInJson);
    ordered_json key = text_json(entry.key);
    if (key.is_string()) {
      metadata[key.get<std::string>()] = std::move(value);
    } else {
      nameless.push_back({{"key", std::move(key)}, {"value", std::move(value)}});
    }
  }
  ordered_json tensors = ordered_json::array();
  for (const GgufTensor& tensor : file.tensors()) {
    const std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
    tensors.push_back(
        {{"name", text_json(tensor.name)},
         {"type", type_name(tensor)},
         {"shape", shape},
         {"bytes", tensor.num_bytes ? ordered_json(*tensor.num_bytes) : ordered_json(nullptr)}});
  }
  ordered_json json = {{"file", text_json(options.model)},
                       {"version", file.version()},
                       {"bytes", file.file_bytes()},
                       {"alignment", file.alignment()},
                       {"parts", parts_json(file)},
                       {"metadata", metadata},
                       {"tensors", tensors}};
  if (!nameless.empty()) json["metadata_of_other_keys"] = nameless;
  return json;
}

std::string file_text(const InspectOptions& options, const GgufFile& file) {
  std::string text =
      format("%s: GGUF version %u, %s, %zu tensors\n", one_line(options.model).c_str(),
             file.version(), bytes_text(file.file_bytes()).c_str(), file.tensors().size());
  text += parts_text(file) + "\nMetadata\n";
  for (const GgufEntry& entry : file.metadata()) {
    std::string value = value_json(entry.value, options.all_arrays ? INT64_MAX : kMaxShown).dump();
    if (value.size() > kMaxTextBytes && !options.all_arrays) {
      value = to_valid_utf8(value.substr(0, kMaxTextBytes)) + " ...";
    }
    text += "  " + one_line(entry.key) + " = " + escaped_json(value) + "\n";
  }
  text += "\nTensors\n";
  std::map<std::string, std::pair<int, int64_t>> types;
  for (const GgufTensor& tensor : file.tensors()) {
    const std::string name = one_line(tensor.name);
    const size_t width = columns_of(name);
    text += "  " + name + std::string(width < 36 ? 36 - width : 0, ' ') +
            format(" %-5s %s\n", type_name(tensor).c_str(), shape_text(tensor).c_str());
    auto& [count, bytes] = types[type_name(tensor)];
    ++count;
    bytes += tensor.num_bytes.value_or(0);
  }
  text += "\nTensor types\n";
  for (const auto& [type, sums] : types) {
    text += format("  %-5s %4d tensors, %s\n", type.c_str(), sums.first,
                   bytes_text(sums.second).c_str());
  }
  return text;
}

std::string kv_text(const InspectOptions& options, const KvTable& table) {
  std::string text = format(
      "\nKey-value cache: %d tokens of a context of %d (%d at once in batches of %d, then one by "
      "one), %s, blocks of %d\n",
      table.tokens, table.context, table.prompt_tokens, options.batch, options.layout.c_str(),
      options.block_size);
  text += table.counted;
  size_t width = 18;
  for (const KvRow& row : table.rows) width = std::max(width, row.kv.name().size());
  const auto column = static_cast<int>(width);
  text += format("  %-*s %16s %20s\n", column, "type", "bytes per token", "committed bytes");
  for (const KvRow& row : table.rows) {
    text += format("  %-*s %16lld %20lld  (%s", column, row.kv.name().c_str(),
                   static_cast<long long>(row.bytes_per_token),
                   static_cast<long long>(row.size.committed_bytes),
                   bytes_text(row.size.committed_bytes).c_str());
    if (row.size.exact_bytes > 0) {
      text += format(", of it %s for exact rows", bytes_text(row.size.exact_bytes).c_str());
    }
    text += ")\n";
    if (row.growing_bytes_per_token == row.bytes_per_token) continue;
    text += format("  %-*s %16lld of these where the text is longer than the windows\n", column, "",
                   static_cast<long long>(row.growing_bytes_per_token));
  }
  return text;
}

int inspect(const InspectOptions& options) {
  if (options.block_size % 16 != 0) {
    return usage_error(name_given(*options.block_size_option) + " " +
                       std::to_string(options.block_size) + ": give a multiple of 16");
  }
  if (options.layout == "contiguous" && options.block_size_option->count() > 0) {
    return usage_error(name_given(*options.block_size_option) + " has no meaning with " +
                       name_given(*options.layout_option) + " contiguous; leave it out");
  }
  Result<GgufFile> file = GgufFile::open(options.model);
  if (!file.ok()) return fail(file.status());
  // A file that cannot be run can still be looked at; then the cache is said to be unknown.
  Result<std::shared_ptr<const Model>> model = load_header(options.model);
  std::vector<KvOptions> ways;
  if (model.ok()) {
    Result<std::vector<KvOptions>> named = ways_of(options.kv, listed_formats((*model)->info()));
    if (!named.ok()) return usage_error(named.status().message());
    ways = std::move(named).value();
    if (Status status = resolve(ways, **model); !status.ok()) return fail(status);
    if (Status status = check_calibration(options.kv, **model); !status.ok()) return fail(status);
  }
  Result<KvTable> table =
      model.ok() ? predict_all(**model, options, ways) : Result<KvTable>(model.status());
  if (model.ok() && !table.ok()) return usage_error("inspect: " + table.status().message());
  Output out;
  if (options.output == "json") {
    ordered_json json = file_json(options, *file);
    json["kv"] = table.ok() ? kv_json(options, *table)
                            : ordered_json{{"unknown_because", table.status().message()}};
    out.write_json(json);
  } else {
    out.write(file_text(options, *file));
    out.write(table.ok()
                  ? kv_text(options, *table)
                  : "\nKey-value cache: unknown, " + one_line(table.status().message()) + "\n");
  }
  return out.finish();
}

}  // namespace

Command add_inspect(CLI::App& program) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = program.add_subcommand(
      "inspect", "Show a model file's metadata and tensors, and predict what its cache takes");
  add_model_option(*command, options->model);
  const auto add_count = [&](const char* name, int& value, int low, const char* what) {
    return command->add_option(name, value, what)
        ->transform(integer_in(low, 1 << 30))
        ->capture_default_str();
  };
  add_count("-c,--ctx-size", options->context, 0, "Context in tokens; 0: as the model was trained");
  options->tokens_option = add_count("--tokens", options->tokens, 0,
                                     "Tokens that the cache holds; 0: all of the context");
  options->prompt_tokens_option = add_count("--prompt-tokens", options->prompt_tokens, 0,
                                            "Of these, read at once, the rest one by one; 0: all");
  add_count("-b,--batch-size", options->batch, 1, "Most tokens computed at once");
  add_kv_options(*command, options->kv);
  options->layout_option =
      command->add_option("--kv-layout", options->layout, "How the cache lies in memory")
          ->check(CLI::IsMember({"paged", "contiguous"}))
          ->capture_default_str();
  options->block_size_option =
      add_count("--block-size", options->block_size, 16, "Tokens of a block, a multiple of 16");
  command->add_flag("--arrays", options->all_arrays,
                    "Show long arrays of the metadata in full, not their lengths");
  add_output_option(*command, options->output, {"text", "json"});
  return {command, [options] { return inspect(*options); }};
}

}  // namespace kvik::cli
