// kvik completion: scripts that let a shell complete commands and options, made from the options
// themselves.
#include <algorithm>
#include <memory>

#include "arguments.h"
#include "commands.h"
#include "kv_types.h"
#include "llama_options.h"

namespace kvik::cli {
namespace {

bool takes_file(const CLI::Option& option) {
  return option.get_type_name() == "FILE" || option.get_type_name() == "auto|off|FILE";
}

// As typed: ours, and those of llama.cpp that say the same in one word.
std::vector<std::string> all_names_of(const CLI::App& command, const CLI::Option& option) {
  std::vector<std::string> names = names_of(option);
  for (const LlamaOption& known : llama_options()) {
    if (known.effect != LlamaOption::Effect::serve || known.text != long_name(option)) continue;
    for (const std::string& name : CLI::detail::split(std::string(known.names), ' ')) {
      const auto has_name = [&](const CLI::Option* other) {
        const std::vector<std::string> own = names_of(*other);
        return std::find(own.begin(), own.end(), name) != own.end();
      };
      const auto options = command.get_options();
      if (std::none_of(options.begin(), options.end(), has_name)) names.push_back(name);
    }
  }
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Values that an option is limited to, or the names among them.
std::string choices_of(const CLI::App& command, const CLI::Option& option) {
  const std::string name = long_name(option);
  if (name == "--cache-type-k") return joined(key_type_names());
  if (name == "--cache-type-v") return joined(value_type_names());
  if (name == "--paged-kv-quant") return "off q8 q6 q4";
  if (name == "--kv-calib") return "auto off";
  if (name == "--kv") {
    std::string ways = joined(way_names());
    if (command.get_name() == "eval") {
      for (const char* const ggml : {"ggml-q8_0", "ggml-q5_1", "ggml-q4_0"}) {
        ways += std::string(" ") + ggml + " " + ggml + "-rot";
      }
    } else if (option.get_delimiter() == '\0') {
      ways += " auto";
    }
    return ways;
  }
  // "TEXT:{paged,contiguous}"
  std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == type.npos || end == type.npos) return "";
  type = type.substr(begin + 1, end - begin - 1);
  std::replace(type.begin(), type.end(), ',', ' ');
  return type;
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
      for (const std::string& name : all_names_of(*command, *option)) {
        words.push_back(name);
        const std::string choices = choices_of(*command, *option);
        if (takes_file(*option) && choices.empty()) files.push_back(name);
        if (!choices.empty()) {
          values += "      " + command->get_name() + "," + name + ") words='" + choices + "'" +
                    (takes_file(*option) ? "; compopt -o default" : "") + " ;;\n";
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
         // Bash makes words of their own of = and of the colon in K:V. Types of a list come after
         // those before them.
         "  local head= back=1\n"
         "  if [[ $current == [:=] ]]; then current=; else [[ $before == [:=] ]] && back=2; fi\n"
         "  ((back == 2)) && before=${COMP_WORDS[COMP_CWORD-2]}\n"
         "  [[ $before != -* && ${COMP_WORDS[COMP_CWORD-back]} == : ]] && "
         "before=${COMP_WORDS[COMP_CWORD-back-1]}\n"
         "  if [[ $before == -* && $current == *,* ]]; then\n"
         "    head=${current%,*}, current=${current##*,}\n"
         "  fi\n"
         "  if ((COMP_CWORD == 1)); then\n"
         "    words='" +
         joined(commands) +
         " --help --version'\n"
         "  else\n"
         "    case ${COMP_WORDS[1]},$before in\n" +
         cases +
         "    esac\n"
         "  fi\n"
         "  mapfile -t COMPREPLY < <(compgen -P \"$head\" -W \"$words\" -- \"$current\")\n"
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
      for (const std::string& name : all_names_of(*command, *option)) {
        cases += " \\\n        '" + name + "[" + without_quotes(option->get_description()) + "]";
        if (option->get_items_expected_max() > 0) {
          cases += !choices.empty()      ? ":value:(" + choices + ")"
                   : takes_file(*option) ? ":file:_files"
                                         : ":value:";
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
      for (const std::string& name : all_names_of(*command, *option)) {
        text += name.starts_with("--") ? " -l " + name.substr(2)
                : name.size() > 2      ? " -o " + name.substr(1)
                                       : " -s " + name.substr(1);
      }
      if (option->get_items_expected_max() > 0) {
        const std::string choices = choices_of(*command, *option);
        const std::string files = takes_file(*option) ? " -r -F" : " -x";
        text += choices.empty() ? files : files + " -a '" + choices + "'";
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
