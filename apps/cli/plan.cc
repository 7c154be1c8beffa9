// kvik plan: what caches of a model take of memory, from its header alone.
#include <algorithm>
#include <cmath>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "kv.h"
#include "kv_types.h"
#include "kvik/backend/cpu_backend.h"
#include "kvik/core/thread_team.h"
#include "kvik/eval/kv_plan.h"
#include "numbers.h"
#include "options.h"
#include "terminal_text.h"

namespace kvik::cli {
namespace {

using nlohmann::ordered_json;

struct PlanOptions {
  std::string model, output;
  int64_t memory = 0;  // 0: not given
  const CLI::Option *memory_option = nullptr, *block_size_option = nullptr,
                    *context_option = nullptr;
  int context = 0;  // 0: as trained
  int users = 1;
  int batch = 512;
  int block_size = 16;
  bool measure = false;
  KvListOptions kv;
};

struct PlanRow {
  KvOptions kv;
  std::vector<int> wide_layers;
  FormatPlan plan;
  std::optional<MeasuredCache> measured;

  bool agrees() const { return measured->committed_bytes == plan.committed_bytes; }
};

struct PlanTable {
  PlanParams params;
  std::string counted;  // what the ways keep beside packed rows
  std::vector<PlanRow> rows;

  bool fits(const PlanRow& row) const {
    return !params.memory_bytes || row.plan.committed_bytes <= *params.memory_bytes;
  }
};

ModelCacheOptions cache_options(const PlanOptions& options, const KvOptions& way,
                                const ModelInfo& info) {
  ModelCacheOptions cache;
  cache.format = way.format();
  cache.protection = way.protection(info);
  cache.block_size = options.block_size;
  return cache;
}

Result<PlanTable> make_table(const PlanOptions& options, const Model& model,
                             const std::vector<KvOptions>& ways) {
  PlanTable table;
  table.counted = counted_text(ways, model.info());
  table.params.context = options.context > 0 ? options.context : model.info().context_length;
  table.params.num_users = options.users;
  table.params.batch = options.batch;
  if (options.memory > 0) table.params.memory_bytes = options.memory;
  CpuBackendOptions backend_options;
  backend_options.num_threads = num_usable_processors();
  std::shared_ptr<Backend> backend;
  if (options.measure) {
    Result<std::unique_ptr<Backend>> created = make_cpu_backend(backend_options);
    if (!created.ok()) return created.status();
    backend = std::move(created).value();
  }
  Progress progress;
  for (const KvOptions& way : ways) {
    const ModelCacheOptions cache = cache_options(options, way, model.info());
    Result<FormatPlan> plan = plan_cache(model, cache, table.params);
    if (!plan.ok()) return plan.status();
    PlanRow row = {way, cache.protection.wide_layers, std::move(plan).value(), std::nullopt};
    if (options.measure) {
      progress.show("measuring " + way.name() + " ...");
      const Result<MeasuredCache> measured = measure_cache(model, cache, table.params, backend);
      if (!measured.ok()) return measured.status();
      row.measured = *measured;
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

ordered_json row_json(const PlanTable& table, const PlanRow& row) {
  const FormatPlan& plan = row.plan;
  ordered_json layers = ordered_json::array();
  for (const LayerBytes& layer : plan.layers) layers.push_back({{"k", layer.k}, {"v", layer.v}});
  ordered_json json = {{"kv", row.kv.name()},
                       {"exact_first", row.kv.first},
                       {"exact_recent", row.kv.recent},
                       {"f16_layers", row.wide_layers},
                       {"bytes_per_token", plan.bytes_per_token},
                       {"growing_bytes_per_token", plan.growing_bytes_per_token},
                       {"layers", layers},
                       {"nbytes", plan.nbytes},
                       {"committed_bytes", plan.committed_bytes},
                       {"exact_bytes", plan.exact_bytes}};
  if (table.params.memory_bytes) {
    json["fits"] = table.fits(row);
    json["longest_context"] = plan.longest_context.value_or(0);
    json["most_users"] = plan.most_users.value_or(0);
  }
  if (row.measured) {
    json["measured"] = {{"nbytes", row.measured->nbytes},
                        {"committed_bytes", row.measured->committed_bytes},
                        {"resident_bytes", row.measured->resident_bytes},
                        {"agrees", row.agrees()}};
  }
  return json;
}

ordered_json to_json(const PlanOptions& options, const Model& model, const PlanTable& table) {
  const ModelInfo& info = model.info();
  ordered_json windows = ordered_json::array();
  for (int i = 0; i < info.num_layers; ++i) windows.push_back(nullptr);
  for (const LayerGroup& group : info.groups) {
    if (!group.window) continue;
    for (const int layer : group.layers) windows[static_cast<size_t>(layer)] = *group.window;
  }
  ordered_json formats = ordered_json::array();
  for (const PlanRow& row : table.rows) formats.push_back(row_json(table, row));
  return {{"model", info.name},
          {"model_file", options.model},
          {"num_kv_heads", info.num_kv_heads},
          {"head_dim_k", info.head_dim_k},
          {"head_dim_v", info.head_dim_v},
          {"layer_windows", windows},
          {"trained_context", info.context_length},
          {"weight_bytes", info.weight_bytes},
          {"context", table.params.context},
          {"users", table.params.num_users},
          {"batch_size", table.params.batch},
          {"block_size", options.block_size},
          {"memory_bytes", table.params.memory_bytes ? ordered_json(*table.params.memory_bytes)
                                                     : ordered_json(nullptr)},
          {"formats", formats}};
}

std::string summary(const PlanOptions& options, const Model& model, const PlanTable& table) {
  const ModelInfo& info = model.info();
  std::string text =
      format("%s: %d layers, %d KV heads of %d and %d elements, trained for %d tokens\n",
             one_line(info.name.empty() ? options.model : info.name).c_str(), info.num_layers,
             info.num_kv_heads, info.head_dim_k, info.head_dim_v, info.context_length);
  for (const LayerGroup& group : info.groups) {
    if (!group.window) continue;
    text += format("%zu of the layers see the newest %d tokens and give older blocks back\n",
                   group.layers.size(), *group.window);
  }
  text += format("Caches of %d %s at %d tokens", table.params.num_users,
                 table.params.num_users == 1 ? "user" : "users", table.params.context);
  if (table.params.memory_bytes) {
    text += " in " + bytes_text(*table.params.memory_bytes);
  }
  text += format(", blocks of %d; the weights, %s, come on top\n", options.block_size,
                 bytes_text(info.weight_bytes).c_str());
  return text + table.counted + "\n";
}

// Smallest and largest over the layers.
std::string per_layer(const std::vector<LayerBytes>& layers) {
  const auto range = [&](int64_t LayerBytes::*side) {
    const auto [low, high] = std::minmax_element(
        layers.begin(), layers.end(),
        [&](const LayerBytes& a, const LayerBytes& b) { return a.*side < b.*side; });
    std::string text = std::to_string((*low).*side);
    if ((*low).*side != (*high).*side) text += "-" + std::to_string((*high).*side);
    return text;
  };
  return range(&LayerBytes::k) + " + " + range(&LayerBytes::v);
}

struct Cells {
  std::vector<std::vector<std::string>> rows;  // the first is the head
};

Cells cells_of(const Model& model, const PlanTable& table) {
  const bool has_windows = std::any_of(model.info().groups.begin(), model.info().groups.end(),
                                       [](const LayerGroup& group) { return group.window; });
  const bool has_exact = std::any_of(table.rows.begin(), table.rows.end(),
                                     [](const PlanRow& row) { return row.plan.exact_bytes > 0; });
  const bool is_measured = !table.rows.empty() && table.rows.front().measured;
  Cells cells;
  std::vector<std::string> head = {"KV format", "bytes/token"};
  if (has_windows) head.push_back("past the window");
  head.insert(head.end(), {"K + V per layer", "committed bytes", "MiB"});
  if (has_exact) head.push_back("of it exact rows");
  if (is_measured) head.insert(head.end(), {"measured", "resident"});
  if (table.params.memory_bytes) head.insert(head.end(), {"fits", "longest context", "most users"});
  cells.rows.push_back(head);
  for (const PlanRow& row : table.rows) {
    const FormatPlan& plan = row.plan;
    std::vector<std::string> line = {row.kv.name(), std::to_string(plan.bytes_per_token)};
    if (has_windows) line.push_back(std::to_string(plan.growing_bytes_per_token));
    line.push_back(per_layer(plan.layers));
    line.push_back(std::to_string(plan.committed_bytes));
    line.push_back(format("%.2f", static_cast<double>(plan.committed_bytes) / (1 << 20)));
    if (has_exact) line.push_back(std::to_string(plan.exact_bytes));
    if (row.measured) {
      line.push_back(std::to_string(row.measured->committed_bytes));
      line.push_back(std::to_string(row.measured->resident_bytes));
    }
    if (table.params.memory_bytes) {
      line.push_back(table.fits(row) ? "yes" : "no");
      line.push_back(std::to_string(plan.longest_context.value_or(0)));
      line.push_back(std::to_string(plan.most_users.value_or(0)));
    }
    cells.rows.push_back(std::move(line));
  }
  return cells;
}

// With bars between the cells for Markdown, else with spaces.
std::string table_text(const Cells& cells, bool is_markdown) {
  std::vector<size_t> widths(cells.rows.front().size());
  for (const auto& row : cells.rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  std::string text;
  for (size_t r = 0; r < cells.rows.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string& cell = cells.rows[r][i];
      const std::string space(widths[i] - columns_of(cell), ' ');
      line += is_markdown ? "| " + markdown_cell(cell) + " "
              : i == 0    ? cell + space
                          : "  " + space + cell;
    }
    text += line + (is_markdown ? "|\n" : "\n");
    if (r == 0 && is_markdown) {
      text += "| ---";
      for (size_t i = 1; i < widths.size(); ++i) text += " | ---:";
      text += " |\n";
    }
  }
  return text;
}

int plan(const PlanOptions& options) {
  if (options.block_size % 16 != 0) {
    return usage_error(name_given(*options.block_size_option) + " " +
                       std::to_string(options.block_size) + ": give a multiple of 16");
  }
  Result<std::shared_ptr<const Model>> model = load_header(options.model);
  if (!model.ok()) return fail(model.status());
  if (const int trained = (*model)->info().context_length; options.context > trained) {
    warn(format("%s %d is more than the %d tokens that the model was trained for",
                name_given(*options.context_option).c_str(), options.context, trained));
  }
  Result<std::vector<KvOptions>> ways = ways_of(options.kv, listed_formats((*model)->info()));
  if (!ways.ok()) return usage_error(ways.status().message());
  if (Status status = resolve(*ways, **model); !status.ok()) return fail(status);
  if (Status status = check_calibration(options.kv, **model); !status.ok()) return fail(status);
  const Result<PlanTable> table = make_table(options, **model, *ways);
  if (!table.ok()) return fail(table.status());
  Output out;
  if (options.output == "json") {
    out.write_json(to_json(options, **model, *table));
  } else {
    const bool is_markdown = options.output == "md";
    if (!is_markdown) out.write(summary(options, **model, *table));
    out.write(table_text(cells_of(**model, *table), is_markdown));
  }
  if (const int code = out.finish(); code != kFine) return code;
  for (const PlanRow& row : table->rows) {
    if (!row.measured || row.agrees()) continue;
    (void)fail(row.kv.name() + ": measured bytes differ from those predicted");
    return kNotVerified;
  }
  if (std::none_of(table->rows.begin(), table->rows.end(),
                   [&](const PlanRow& row) { return table->fits(row); })) {
    (void)fail(format(
        "%d tokens for %d %s fit into %s %s in none of these formats", table->params.context,
        table->params.num_users, table->params.num_users == 1 ? "user" : "users",
        name_given(*options.memory_option).c_str(), value_given(*options.memory_option).c_str()));
    return kDoesNotFit;
  }
  return kFine;
}

}  // namespace

Command add_plan(CLI::App& program) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = program.add_subcommand(
      "plan", "Say what caches of a model take, how long a context and how many users fit");
  add_model_option(*command, options->model);
  const auto add_count = [&](const char* name, int& value, int low, const char* what) {
    return command->add_option(name, value, what)
        ->transform(integer_in(low, 1 << 30))
        ->capture_default_str();
  };
  options->memory_option = command
                               ->add_option("--mem", options->memory,
                                            "Memory for caches, weights not counted, like 8GiB")
                               ->transform(byte_count().description(""))
                               ->type_name("BYTES");
  options->context_option = add_count("-c,--ctx-size", options->context, 0,
                                      "Tokens that each user holds; 0: as the model was trained");
  add_count("--users", options->users, 1, "Users at the same time, sharing nothing");
  add_count("-b,--batch-size", options->batch, 1, "Most tokens computed at once");
  options->block_size_option =
      add_count("--block-size", options->block_size, 16, "Tokens of a block, a multiple of 16");
  add_kv_options(*command, options->kv);
  command->add_flag("--measure", options->measure,
                    "Make and fill the caches, and show predicted beside measured bytes");
  add_output_option(*command, options->output, {"text", "json", "md"});
  return {command, [options] { return plan(*options); }};
}

}  // namespace kvik::cli
