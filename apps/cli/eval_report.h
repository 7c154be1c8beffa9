// The result of `kvik eval` in its forms.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kvik/eval/compare.h"

namespace kvik::cli {

struct EvalReport {
  std::string model_name, model_file, text;
  int threads = 0;
  Comparison comparison;
};

// What was compared, in one sentence.
std::string eval_summary(const EvalReport& report);

std::string eval_text(const EvalReport& report);
std::string eval_markdown(const EvalReport& report);
nlohmann::ordered_json eval_json(const EvalReport& report);
// One page that needs nothing else: table and plots.
std::string eval_html(const EvalReport& report);

// The columns that the forms share, the first one the name; reference first.
struct EvalTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};
EvalTable eval_table(const EvalReport& report);

}  // namespace kvik::cli
