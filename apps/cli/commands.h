// One function for each command: adds it to the program with its options and returns what runs it
// after parsing. The options live as long as the returned function.
#pragma once

#include <CLI/CLI.hpp>
#include <utility>

#include "cli.h"

namespace kvik::cli {

using Command = std::pair<CLI::App*, Action>;

Command add_run(CLI::App& program);
Command add_tokenize(CLI::App& program);
Command add_template(CLI::App& program);
Command add_score(CLI::App& program);
Command add_perplexity(CLI::App& program);
Command add_eval(CLI::App& program);
Command add_plan(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_inspect(CLI::App& program);
Command add_calibrate(CLI::App& program);
Command add_doctor(CLI::App& program);
Command add_completion(CLI::App& program);

}  // namespace kvik::cli
