#include "eval_report.h"

#include <algorithm>

#include "cli.h"
#include "terminal_text.h"

namespace kvik::cli {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> row_of(const CandidateResult& result, bool is_reference) {
  std::vector<std::string> row = {is_reference ? result.name + " (reference)" : result.name,
                                  std::to_string(result.bytes_per_token),
                                  format("%.3f", result.ratio),
                                  format("%.4f +/- %.4f", result.ppl, result.ppl_error)};
  if (is_reference) {
    row.resize(10, "-");
  } else {
    row.push_back(format("%.3g +/- %.2g", result.mean_kld, result.kld_error));
    for (const double value : {result.kld_median, result.kld_99, result.kld_999, result.kld_max}) {
      row.push_back(format("%.3g", value));
    }
    row.push_back(format("%.2f %%", 100 * result.same_top));
  }
  row.push_back(format("%.0f", result.tokens_per_second));
  return row;
}

ordered_json result_json(const CandidateResult& result) {
  ordered_json by_position = ordered_json::array();
  for (const PositionDivergence& part : result.by_position) {
    by_position.push_back({{"begin", part.begin}, {"end", part.end}, {"mean_kld", part.mean_kld}});
  }
  return {{"kv", result.name},
          {"bytes_per_token", result.bytes_per_token},
          {"ratio", result.ratio},
          {"ppl", result.ppl},
          {"ppl_error", result.ppl_error},
          {"mean_kld", result.mean_kld},
          {"kld_error", result.kld_error},
          {"kld_median", result.kld_median},
          {"kld_99", result.kld_99},
          {"kld_999", result.kld_999},
          {"kld_max", result.kld_max},
          {"same_top", result.same_top},
          {"rms_dp", result.rms_dp},
          {"tokens_per_second", result.tokens_per_second},
          {"by_position", by_position}};
}

}  // namespace

std::string eval_summary(const EvalReport& report) {
  const Comparison& result = report.comparison;
  std::string summary =
      format("%s on %s: %d %s of %d tokens, %lld positions scored (%d to %d of each)",
             one_line(report.model_name).c_str(), one_line(report.text).c_str(), result.num_chunks,
             result.num_chunks == 1 ? "chunk" : "chunks", result.context,
             static_cast<long long>(result.num_positions), result.first_scored, result.context - 2);
  if (result.first_position != 0) {
    summary +=
        format(", the first at position %lld", static_cast<long long>(result.first_position));
  }
  return summary;
}

EvalTable eval_table(const EvalReport& report) {
  EvalTable table;
  table.head = {"KV format", "bytes/token", "of f16", "perplexity", "mean KLD", "median KLD",
                "99 %",      "99.9 %",      "max",    "same top",   "tokens/s"};
  table.rows.push_back(row_of(report.comparison.reference, true));
  for (const CandidateResult& result : report.comparison.candidates) {
    table.rows.push_back(row_of(result, false));
  }
  return table;
}

std::string eval_text(const EvalReport& report) {
  const EvalTable table = eval_table(report);
  std::vector<size_t> widths;
  for (size_t i = 0; i < table.head.size(); ++i) {
    size_t width = columns_of(table.head[i]);
    for (const auto& row : table.rows) width = std::max(width, columns_of(row[i]));
    widths.push_back(width);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text = cells[0] + std::string(widths[0] - columns_of(cells[0]), ' ');
    for (size_t i = 1; i < cells.size(); ++i) {
      text += std::string(2 + widths[i] - columns_of(cells[i]), ' ') + cells[i];
    }
    return text + "\n";
  };
  std::string text = eval_summary(report) + "\n\n" + line(table.head);
  for (const auto& row : table.rows) text += line(row);
  return text +
         "\nKLD: KL(f32 cache || format) of the next token, natural log; +/-: one standard "
         "error.\n";
}

std::string eval_markdown(const EvalReport& report) {
  const EvalTable table = eval_table(report);
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += " " + markdown_cell(cell) + " |";
    return text + "\n";
  };
  std::vector<std::string> rule(table.head.size(), "---:");
  rule[0] = "---";
  std::string text = line(table.head) + line(rule);
  for (const auto& row : table.rows) text += line(row);
  return text;
}

ordered_json eval_json(const EvalReport& report) {
  const Comparison& result = report.comparison;
  ordered_json results = ordered_json::array();
  for (const CandidateResult& each : result.candidates) results.push_back(result_json(each));
  return {{"model", report.model_name},
          {"model_file", report.model_file},
          {"text", report.text},
          {"context", result.context},
          {"chunks", result.num_chunks},
          {"first_position", result.first_position},
          {"first_scored", result.first_scored},
          {"positions", result.num_positions},
          {"threads", report.threads},
          {"reference", result_json(result.reference)},
          {"results", results}};
}

}  // namespace kvik::cli
