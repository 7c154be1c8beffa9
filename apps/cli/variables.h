// Variables that stand for options: KVIK_CTX_SIZE for --ctx-size.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "arguments.h"
#include "kvik/core/status.h"

namespace kvik::cli {

// KVIK_NAME_OF_THE_OPTION; with the command in front of the name (KVIK_CALIBRATE_OUTPUT) where the
// option means something else than in other commands. Empty: the option has none.
std::string variable_name(const CLI::App& command, const CLI::Option& option);

// Adds the options that variables set. A variable that is empty counts as none. One gives way to
// the command line: to the same option, to one that excludes it, and to one beside which it could
// not take effect. Errors: invalid_argument for a flag's value that is neither on nor off.
Status add_variables(CLI::App& command, Arguments& arguments);

// Warns of each KVIK_ variable that no option reads and that is nearly the name of one that is.
void warn_of_misspelt_variables(const CLI::App& program);

// Shows the variables in --help.
void show_variables(CLI::App& program);

}  // namespace kvik::cli
