// Plots as SVG that stands in a page by itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvik::cli {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // those with y <= 0 or not finite are left out
};

struct Plot {
  std::string x_label, y_label;
  std::vector<PlotSeries> series;
  bool has_lines = false;  // else one point per series, its name beside it
};

// y is logarithmic. Nothing to show gives a sentence that says so.
std::string svg_plot(const Plot& plot);

// "&", "<", ">" and quotes made harmless.
std::string html_escape(const std::string& text);

}  // namespace kvik::cli
