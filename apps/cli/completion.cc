// kvik completion: scripts that let a shell complete commands and options, made from the options
// themselves.
#include <memory>

#include "commands.h"

namespace kvik::cli {
namespace {

bool takes_file(const CLI::Option& option) { return option.get_type_name() == "FILE"; }

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) {
    names.push_back("--" + name);
    if (name == "cache-type-k") names.emplace_back("-ctk");
    if (name == "cache-type-v") names.emplace_back("-ctv");
  }
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Values that an option is limited to, for those that have few.
std::string choices_of(const CLI::App& command, const CLI::Option& option) {
  const std::string name = option.get_single_name();
  if (name == "kv-layout") return "paged contiguous";
  if (name == "cache-type-k" || name == "cache-type-v") return "f32 f16 bf16";
  if (name == "output") return command.get_name() == "bench" ? "md json" : "text json";
  return "";
}

std::string without_quotes(std::string text) {
  std::erase_if(text, [](char c) { return c == '\'' || c == '[' || c == ']' || c == ':'; });
  return text;
}

std::string bash(const CLI::App& program) {
  std::string cases;
  std::vector<std::string> commands;
  for (const CLI::App* command : program.get_subcommands({})) {
    commands.push_back(command->get_name());
    std::vector<std::string> words;
    std::vector<std::string> files;
    std::string values;
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : names_of(*option)) {
        words.push_back(name);
        if (takes_file(*option)) files.push_back(name);
        if (const std::string choices = choices_of(*command, *option); !choices.empty()) {
          values += "      " + command->get_name() + "," + name + ") words='" + choices + "' ;;\n";
        }
      }
    }
    for (const std::string& name : files) {
      values += "      " + command->get_name() + "," + name + ") compopt -o default; return ;;\n";
    }
    const bool is_completion = command->get_name() == "completion";
    cases += values + "      " + command->get_name() + ",*) words='" + joined(words) +
             (is_completion ? " bash zsh fish" : "") + "' ;;\n";
  }
  return "# bash completion for kvik\n"
         "_kvik() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words\n"
         "  COMPREPLY=()\n"
         "  if ((COMP_CWORD == 1)); then\n"
         "    words='" +
         joined(commands) +
         " --help --version'\n"
         "  else\n"
         "    case ${COMP_WORDS[1]},$before in\n" +
         cases +
         "    esac\n"
         "  fi\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
         "}\n"
         "complete -F _kvik kvik\n";
}

std::string zsh(const CLI::App& program) {
  std::string text = "#compdef kvik\n_kvik() {\n  local -a commands=(\n";
  std::string cases;
  for (const CLI::App* command : program.get_subcommands({})) {
    text +=
        "    '" + command->get_name() + ":" + without_quotes(command->get_description()) + "'\n";
    cases += "    " + command->get_name() + ")\n      _arguments";
    for (const CLI::Option* option : command->get_options()) {
      const std::string choices = choices_of(*command, *option);
      for (const std::string& name : names_of(*option)) {
        cases += " \\\n        '" + name + "[" + without_quotes(option->get_description()) + "]";
        if (option->get_items_expected_max() > 0) {
          cases += takes_file(*option) ? ":file:_files"
                   : choices.empty()   ? ":value:"
                                       : ":value:(" + choices + ")";
        }
        cases += "'";
      }
    }
    if (command->get_name() == "completion") cases += " \\\n        '1:shell:(bash zsh fish)'";
    cases += " ;;\n";
  }
  text +=
      "  )\n  if ((CURRENT == 2)); then\n    _describe command commands\n    return\n  fi\n"
      "  local command=$words[2]\n  shift words\n  ((CURRENT--))\n  case $command in\n" +
      // Found as a file in $fpath, or sourced.
      cases +
      "  esac\n}\nif [[ $funcstack[1] == _kvik ]]; then\n  _kvik \"$@\"\nelse\n  compdef _kvik "
      "kvik\nfi\n";
  return text;
}

std::string fish(const CLI::App& program) {
  std::string text = "# fish completion for kvik\ncomplete -c kvik -f\n";
  for (const CLI::App* command : program.get_subcommands({})) {
    text += "complete -c kvik -n __fish_use_subcommand -a " + command->get_name() + " -d '" +
            without_quotes(command->get_description()) + "'\n";
    for (const CLI::Option* option : command->get_options()) {
      text += "complete -c kvik -n '__fish_seen_subcommand_from " + command->get_name() + "'";
      for (const std::string& name : option->get_snames()) text += " -s " + name;
      for (const std::string& name : option->get_lnames()) text += " -l " + name;
      if (option->get_items_expected_max() > 0) {
        const std::string choices = choices_of(*command, *option);
        text += takes_file(*option) ? " -r -F"
                : choices.empty()   ? " -x"
                                    : " -x -a '" + choices + "'";
      }
      text += " -d '" + without_quotes(option->get_description()) + "'\n";
    }
  }
  text += "complete -c kvik -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n";
  return text;
}

}  // namespace

Command add_completion(CLI::App& program) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command =
      program.add_subcommand("completion", "Print a script that completes commands and options");
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return {command, [shell, &program] {
            Output out;
            out.write(*shell == "bash"  ? bash(program)
                      : *shell == "zsh" ? zsh(program)
                                        : fish(program));
            return out.finish();
          }};
}

}  // namespace kvik::cli
