#include "svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cli.h"

namespace kvik::cli {
namespace {

constexpr double kWidth = 860, kHeight = 420;
constexpr double kLeft = 70, kRight = 190, kTop = 16, kBottom = 48;
constexpr double kLineHeight = 13;

// Told apart by people who see colours differently too.
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                 "#56b4e9", "#8a6d00", "#777777", "#7a5cff", "#b22222"};

const char* colour(size_t i) { return kColours[i % kColours.size()]; }

bool is_shown(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second) && point.second > 0;
}

// Ranges of the axes, and where a point lies in the picture.
struct Frame {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;  // y as its decimal logarithm

  double x(double value) const {
    return kLeft + (value - x_low) / (x_high - x_low) * (kWidth - kLeft - kRight);
  }
  double y_of_log(double value) const {
    return kHeight - kBottom - (value - y_low) / (y_high - y_low) * (kHeight - kTop - kBottom);
  }
  double y(double value) const { return y_of_log(std::log10(value)); }
};

// 1, 2 or 5 times a power of ten: about six steps over a range.
double step_of(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 6)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (range / (power * factor) <= 6) return power * factor;
  }
  return power * 10;
}

Frame frame_of(const Plot& plot) {
  double x_low = INFINITY, x_high = -INFINITY, y_low = INFINITY, y_high = -INFINITY;
  for (const PlotSeries& series : plot.series) {
    for (const auto& point : series.points) {
      if (!is_shown(point)) continue;
      x_low = std::min(x_low, point.first);
      x_high = std::max(x_high, point.first);
      y_low = std::min(y_low, std::log10(point.second));
      y_high = std::max(y_high, std::log10(point.second));
    }
  }
  Frame frame;
  const double step = step_of(std::max(x_high - x_low, 1.0));
  frame.x_low = plot.has_lines ? x_low : 0;
  frame.x_high =
      plot.has_lines ? std::max(x_high, x_low + 1) : (std::floor(x_high / step) + 1) * step;
  frame.y_low = std::floor(y_low);
  frame.y_high = std::max(std::ceil(y_high), frame.y_low + 1);
  return frame;
}

std::string text_at(double x, double y, const char* attributes, const std::string& text) {
  return format("<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes) + html_escape(text) +
         "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const char* kind) {
  return format("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", kind, x1,
                y1, x2, y2);
}

std::string axes(const Plot& plot, const Frame& frame) {
  const double right = kWidth - kRight, bottom = kHeight - kBottom;
  std::string svg;
  for (double power = frame.y_low; power <= frame.y_high; ++power) {
    const double y = frame.y_of_log(power);
    svg += line(kLeft, y, right, y, "grid");
    svg += text_at(kLeft - 6, y + 4, "text-anchor=\"end\"", format("1e%.0f", power));
  }
  const double step = step_of(frame.x_high - frame.x_low);
  for (double x = std::ceil(frame.x_low / step) * step; x <= frame.x_high; x += step) {
    svg += line(frame.x(x), bottom, frame.x(x), bottom + 4, "axis");
    svg += text_at(frame.x(x), bottom + 18, "text-anchor=\"middle\"", format("%.0f", x));
  }
  svg += line(kLeft, bottom, right, bottom, "axis") + line(kLeft, kTop, kLeft, bottom, "axis");
  svg += text_at((kLeft + right) / 2, kHeight - 8, "text-anchor=\"middle\"", plot.x_label);
  return svg + text_at(0, 0,
                       format("text-anchor=\"middle\" transform=\"translate(14 %.1f) rotate(-90)\"",
                              (kTop + bottom) / 2)
                           .c_str(),
                       plot.y_label);
}

std::string lines(const Plot& plot, const Frame& frame) {
  std::string svg;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const PlotSeries& series = plot.series[i];
    std::string points;
    for (const auto& point : series.points) {
      if (is_shown(point))
        points += format("%.1f,%.1f ", frame.x(point.first), frame.y(point.second));
    }
    // Beyond the colours, the dashes tell.
    const char* const dash = i < kColours.size() ? "none" : "5 3";
    svg += format(
               "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" "
               "stroke-dasharray=\"%s\"><title>",
               points.c_str(), colour(i), dash) +
           html_escape(series.name) + "</title></polyline>\n";
    const double y = kTop + 10 + static_cast<double>(i) * (kLineHeight + 3);
    svg += format(
        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
        "stroke-width=\"2\" stroke-dasharray=\"%s\"/>\n",
        kWidth - kRight + 12, y - 4, kWidth - kRight + 34, y - 4, colour(i), dash);
    svg +=
        text_at(kWidth - kRight + 40, y, "", points.empty() ? series.name + " (0)" : series.name);
  }
  return svg;
}

// A name beside its point.
struct Label {
  double x, y, width;

  bool overlaps(const Label& other) const {
    return std::abs(other.y - y) < kLineHeight && x < other.x + other.width && other.x < x + width;
  }
};

std::string dots(const Plot& plot, const Frame& frame) {
  // From the top down: a name that finds its place taken goes below.
  std::vector<size_t> order;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    if (!plot.series[i].points.empty() && is_shown(plot.series[i].points[0])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return plot.series[a].points[0].second > plot.series[b].points[0].second;
  });
  std::vector<Label> labels;
  std::string svg;
  for (const size_t i : order) {
    const PlotSeries& series = plot.series[i];
    const auto& [value, kld] = series.points[0];
    const double x = frame.x(value), y = frame.y(kld);
    svg += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"><title>", x, y, colour(i)) +
           html_escape(format("%s: %.0f, %.3g", series.name.c_str(), value, kld)) +
           "</title></circle>\n";
    Label label = {x + 8, y + 4, 7.0 * static_cast<double>(series.name.size() + 1)};
    while (std::any_of(labels.begin(), labels.end(),
                       [&](const Label& other) { return label.overlaps(other); })) {
      label.y += 2;
    }
    labels.push_back(label);
    svg += text_at(label.x, label.y, format("style=\"fill: %s\"", colour(i)).c_str(), series.name);
  }
  return svg;
}

}  // namespace

std::string html_escape(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string svg_plot(const Plot& plot) {
  const bool is_empty =
      std::none_of(plot.series.begin(), plot.series.end(), [](const auto& series) {
        return std::any_of(series.points.begin(), series.points.end(), is_shown);
      });
  if (is_empty) return "<p>No divergence above 0 to show.</p>\n";
  const Frame frame = frame_of(plot);
  return format("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", kWidth, kHeight) +
         html_escape(plot.y_label + " against " + plot.x_label) + "\">\n" + axes(plot, frame) +
         (plot.has_lines ? lines(plot, frame) : dots(plot, frame)) + "</svg>\n";
}

}  // namespace kvik::cli
