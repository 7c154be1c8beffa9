// kvik: the command line. Parses, calls the library, prints.
#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli.h"
#include "commands.h"
#include "options.h"

namespace kvik::cli {
namespace {

// The error of the parser in one line, with where to look further.
int report(const CLI::App& program, const CLI::ParseError& error) {
  std::string name = "kvik";
  if (const auto chosen = program.get_subcommands(); !chosen.empty()) {
    name += " " + chosen.front()->get_name();
  }
  return usage_error(std::string(error.what()) + " (see " + name + " --help)");
}

int run(std::vector<std::string> arguments) {
  CLI::App program("Runs language models out of a paged key-value cache.", "kvik");
  program.set_version_flag("--version", "kvik " KVIK_VERSION);
  program.require_subcommand(1);
  std::vector<Command> commands;
  for (const auto add :
       {add_run, add_tokenize, add_template, add_score, add_perplexity, add_eval, add_plan,
        add_bench, add_inspect, add_calibrate, add_doctor, add_completion}) {
    commands.push_back(add(program));
  }
  name_environment(program);
  program.footer(
      "Every option can also be set by a variable, for example --ctx-size by KVIK_CTX_SIZE.\n"
      "Exit status: 0 fine, 1 failed, 2 wrong usage, 3 does not fit, 4 verification failed.");

  if (arguments.empty()) return usage_error("give a command, for example run (see kvik --help)");
  if (const std::string& first = arguments.front();
      first.rfind('-', 0) != 0 &&
      std::none_of(commands.begin(), commands.end(),
                   [&](const auto& c) { return c.first->get_name() == first; })) {
    return usage_error("there is no command '" + first + "' (see kvik --help)");
  }
  arguments = with_long_names(std::move(arguments));
  std::reverse(arguments.begin(), arguments.end());  // as the parser wants a vector
  try {
    program.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    const auto chosen = program.get_subcommands();
    Output out;
    out.write((chosen.empty() ? &program : chosen.front())->help());
    return out.finish();
  } catch (const CLI::CallForVersion& version) {
    Output out;
    out.write(std::string(version.what()) + "\n");
    return out.finish();
  } catch (const CLI::ParseError& error) {
    return report(program, error);
  }
  for (const auto& [command, action] : commands) {
    if (command->parsed()) return action();
  }
  return kFailed;
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
