// kvik: the command line. Parses, calls the library, prints.
#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "arguments.h"
#include "cli.h"
#include "commands.h"
#include "variables.h"

namespace kvik::cli {
namespace {

int print(const std::string& text) {
  Output out;
  out.write(text);
  return out.finish();
}

// What is wrong, in one line, with where to look further.
int wrong(const std::string& what, const std::string& program) {
  return usage_error(what + " (see " + program + " --help)");
}

int help(CLI::App& program, const CLI::App& shown) {
  show_variables(program);
  return print(shown.help());
}

// Fills the options of the command and runs it.
int run_command(CLI::App& program, const Command& chosen, std::span<const std::string> words) {
  CLI::App& command = *chosen.first;
  const std::string name = "kvik " + command.get_name();
  Result<Arguments> arguments = read_arguments(command, words);
  if (!arguments.ok()) return wrong(arguments.status().message(), name);
  if (arguments->wants_help) return help(program, command);
  Status status = add_variables(command, *arguments);
  if (status.ok()) status = check_together(command, *arguments);
  if (!status.ok()) return wrong(status.message(), name);
  warn_of_misspelt_variables(program);
  std::vector<std::string> parsed = parser_words(command, *arguments);
  std::reverse(parsed.begin(), parsed.end());  // as the parser wants a vector
  try {
    program.parse(std::move(parsed));
  } catch (const CLI::ParseError& error) {
    return wrong(in_given_names(command, error.what()), name);
  }
  return chosen.second();
}

int run(const std::vector<std::string>& words) {
  CLI::App program("Runs language models out of a paged key-value cache.", "kvik");
  program.add_flag("--version")->description("Print the version and end");
  program.require_subcommand(1);
  std::vector<Command> commands;
  for (const auto add :
       {add_run, add_tokenize, add_template, add_score, add_perplexity, add_eval, add_plan,
        add_bench, add_inspect, add_calibrate, add_doctor, add_completion}) {
    commands.push_back(add(program));
  }
  program.footer(
      "Every option can also be set by a variable, for example --ctx-size by KVIK_CTX_SIZE.\n"
      "Exit status: 0 fine, 1 failed, 2 wrong usage, 3 does not fit, 4 verification failed.");

  if (words.empty()) return usage_error("give a command, for example run (see kvik --help)");
  const std::string& first = words.front();
  const bool asks_for_help = first == "-h" || first == "--help";
  if (asks_for_help && words.size() == 1) return help(program, program);
  if (first == "--version" && words.size() == 1) return print("kvik " KVIK_VERSION "\n");
  if (asks_for_help || first == "--version") {
    return wrong(first + " stands alone, or after a command", "kvik");
  }
  std::vector<std::string> names;
  for (const Command& each : commands) {
    names.push_back(each.first->get_name());
    if (names.back() != first) continue;
    return run_command(program, each, std::span(words).subspan(1));
  }
  if (first.starts_with('-')) {
    return wrong(first + ": give a command first, for example run", "kvik");
  }
  return wrong("there is no command '" + first + "'; the nearest is " + nearest(first, names),
               "kvik");
}

}  // namespace
}  // namespace kvik::cli

int main(int argc, char** argv) {
  using namespace kvik::cli;
  prepare_streams();
  try {
    return run({argv + (argc > 0 ? 1 : 0), argv + argc});
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
