// `kvik eval -o html`: one page without scripts and without anything from elsewhere.
#include "cli.h"
#include "eval_report.h"
#include "svg_plot.h"
#include "terminal_text.h"

namespace kvik::cli {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { padding: .25em .7em; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; }
svg text { font-size: 12px; fill: currentColor; }
svg .axis { stroke: currentColor; } svg .grid { stroke: #8884; }
)";

std::string table_html(const EvalReport& report) {
  const EvalTable table = eval_table(report);
  const auto row = [](const std::vector<std::string>& cells, const char* tag) {
    std::string html = "<tr>";
    for (const std::string& cell : cells) {
      html += format("<%s>", tag) + html_escape(cell) + format("</%s>", tag);
    }
    return html + "</tr>\n";
  };
  std::string html = "<table>\n<thead>" + row(table.head, "th") + "</thead>\n<tbody>\n";
  for (const auto& cells : table.rows) html += row(cells, "td");
  return html + "</tbody>\n</table>\n";
}

Plot plot_of_bytes(const Comparison& comparison) {
  Plot plot = {"bytes per token, all layers", "mean KL divergence", {}, /*has_lines=*/false};
  for (const CandidateResult& result : comparison.candidates) {
    plot.series.push_back(
        {result.name, {{static_cast<double>(result.bytes_per_token), result.mean_kld}}});
  }
  return plot;
}

Plot plot_of_positions(const Comparison& comparison) {
  Plot plot = {"position in the chunk", "mean KL divergence", {}, /*has_lines=*/true};
  for (const CandidateResult& result : comparison.candidates) {
    PlotSeries series = {result.name, {}};
    for (const PositionDivergence& part : result.by_position) {
      series.points.emplace_back((part.begin + part.end - 1) / 2.0, part.mean_kld);
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace

std::string eval_html(const EvalReport& report) {
  const std::string title = html_escape("KV formats of " + one_line(report.model_name));
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width\">\n<title>" +
         title + "</title>\n<style>" + kStyle + "</style>\n</head>\n<body>\n<h1>" + title +
         "</h1>\n<p>" + html_escape(eval_summary(report)) +
         ". KLD: KL divergence of the next token's probabilities from those with an f32 cache, "
         "natural "
         "log; +/-: one standard error. Lower and further left is better.</p>\n" +
         table_html(report) + "<h2>Divergence against bytes per token</h2>\n" +
         svg_plot(plot_of_bytes(report.comparison)) + "<h2>Divergence against position</h2>\n" +
         svg_plot(plot_of_positions(report.comparison)) +
         "<p>Made by kvik " KVIK_VERSION ".</p>\n</body>\n</html>\n";
}

}  // namespace kvik::cli
