// What all benchmarks share: the clock, medians, options of the command line.
#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvik/core/buffer.h"
#include "kvik/core/cpu_features.h"
#include "kvik/core/read_rate.h"
#include "kvik/core/thread_team.h"

namespace kvik::bench {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Median with spread, for JSON.
inline nlohmann::json summary(const std::vector<double>& values) {
  return {{"median", median(values)},
          {"min", *std::min_element(values.begin(), values.end())},
          {"max", *std::max_element(values.begin(), values.end())}};
}

// All of `text` as a decimal number from 0 on; ends the program for anything else.
inline int whole_number(const std::string& what, const std::string& text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) {
    std::fprintf(stderr, "%s %s: give a whole decimal number\n", what.c_str(), text.c_str());
    std::exit(2);
  }
  return value;
}

// "--name=value" among the arguments, or `fallback`.
inline int int_option(int argc, char** argv, const std::string& name, int fallback) {
  const std::string prefix = "--" + name + "=";
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]).rfind(prefix, 0) == 0) {
      return whole_number("--" + name, argv[i] + prefix.size());
    }
  }
  return fallback;
}

inline std::string text_option(int argc, char** argv, const std::string& name,
                               const std::string& fallback) {
  const std::string prefix = "--" + name + "=";
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]).rfind(prefix, 0) == 0) return argv[i] + prefix.size();
  }
  return fallback;
}

}  // namespace kvik::bench
