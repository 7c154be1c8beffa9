#include "arguments.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "cli.h"
#include "llama_options.h"

namespace kvik::cli {
namespace {

// What the user gave the command that runs; filled once, before the parser runs.
std::map<const CLI::Option*, GivenOption>& given_options() {
  static std::map<const CLI::Option*, GivenOption> options;
  return options;
}

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

bool may_repeat(const CLI::Option& option) { return option.get_expected_max() > 1; }

CLI::Option* find_option(const CLI::App& command, std::string_view name) {
  for (CLI::Option* const option : const_cast<CLI::App&>(command).get_options()) {
    const std::vector<std::string> names = names_of(*option);
    if (std::find(names.begin(), names.end(), name) != names.end()) return option;
  }
  return nullptr;
}

// A word, cut where its value begins.
struct Word {
  std::string name;
  std::optional<std::string> value;
};

// "--name=value", "-n=5", and "-n5", which is a short name with digits behind it.
Word cut(const CLI::App& command, const std::string& word) {
  if (const size_t equals = word.find('='); equals != word.npos) {
    return {word.substr(0, equals), word.substr(equals + 1)};
  }
  const size_t digit = word.size() > 3 && word[2] == '-' ? 3 : 2;
  if (word.size() > digit && word[1] != '-' && word[digit] >= '0' && word[digit] <= '9' &&
      find_option(command, word.substr(0, 2)) != nullptr) {
    return {word.substr(0, 2), word.substr(2)};
  }
  return {word, std::nullopt};
}

class Reader {
 public:
  Reader(CLI::App& command, std::span<const std::string> words)
      : command_(command), words_(words) {}

  Result<Arguments> read() {
    for (bool has_ended = false; next_ < words_.size();) {
      const std::string& word = words_[next_++];
      if (has_ended || word.size() < 2 || word[0] != '-') {
        if (Status status = add_positional(word); !status.ok()) return status;
      } else if (word == "--") {
        has_ended = true;
      } else if (Status status = add_option(cut(command_, word)); !status.ok()) {
        return status;
      }
    }
    return std::move(arguments_);
  }

 private:
  std::string program() const { return "kvik " + command_.get_name(); }

  Status add_positional(const std::string& word) {
    size_t taken = 0;
    for (const CLI::Option* option : command_.get_options()) taken += option->get_positional();
    if (arguments_.positionals.size() >= taken) {
      return invalid_argument("'" + word + "': " + program() + " takes options only");
    }
    arguments_.positionals.push_back(word);
    return {};
  }

  Status add_option(const Word& word) {
    if (CLI::Option* const option = find_option(command_, word.name)) {
      return add(*option, word.name, word.value);
    }
    if (const LlamaOption* const known = find_llama_option(command_, word.name)) {
      return add_known(*known, word);
    }
    std::vector<std::string> names;
    for (const CLI::Option* option : command_.get_options()) {
      for (std::string& name : names_of(*option)) names.push_back(std::move(name));
    }
    return invalid_argument("there is no option " + word.name + "; the nearest is " +
                            nearest(word.name, names));
  }

  Status add(CLI::Option& option, const std::string& name,
             const std::optional<std::string>& attached) {
    if (name == "-h" || name == "--help") {
      arguments_.wants_help = true;
      return {};
    }
    if (is_flag(option)) {
      const std::optional<bool> is_on = attached ? parse_switch(*attached) : true;
      if (!is_on) return invalid_argument(name + "=" + *attached + ": the option takes no value");
      if (*is_on && !arguments_.has(long_name(option))) {
        arguments_.options.push_back({&option, "", name});
      }
      return {};
    }
    Result<std::string> value = value_of(name, attached, option.get_type_name());
    if (!value.ok()) return value.status();
    if (option.get_delimiter() != '\0' && has_empty_part(*value, option.get_delimiter())) {
      return invalid_argument(name + " " + *value + ": a part of the list is empty");
    }
    if (!may_repeat(option) && arguments_.has(long_name(option))) {
      return invalid_argument(name + " is given twice (" + long_name(option) + ")");
    }
    arguments_.options.push_back({&option, std::move(value).value(), name});
    return {};
  }

  static bool has_empty_part(const std::string& list, char delimiter) {
    const std::string doubled(2, delimiter);
    return list.empty() || list.front() == delimiter || list.back() == delimiter ||
           list.find(doubled) != list.npos;
  }

  // What follows the name. A text may look like an option; nothing else does.
  Result<std::string> value_of(const std::string& name, const std::optional<std::string>& attached,
                               const std::string& type) {
    if (attached) return *attached;
    const std::string wanted =
        type.empty() ? "value" : type.substr(type.find(':') == type.npos ? 0 : type.find(':') + 1);
    if (next_ == words_.size()) return invalid_argument(name + " needs a value: " + wanted);
    const std::string& value = words_[next_];
    if (type != "TEXT" && find_option(command_, value) != nullptr) {
      return invalid_argument(name + " needs a value: " + wanted + "; " + value +
                              " is an option itself");
    }
    ++next_;
    return value;
  }

  Status add_known(const LlamaOption& known, const Word& word) {
    std::optional<std::string> value = word.value;
    const bool looks_ahead = !value && next_ < words_.size();
    if (looks_ahead && takes_value(known, words_[next_])) value = words_[next_++];
    if (!value && needs_value(known)) return invalid_argument(word.name + " needs a value");
    const Result<LlamaVerdict> verdict = judge(known, word.name, value);
    if (!verdict.ok()) return verdict.status();
    if (verdict->mode) arguments_.modes.push_back(*verdict->mode);
    if (!verdict->note.empty()) note(verdict->note);
    if (verdict->serves.empty()) return {};
    CLI::Option* const option = find_option(command_, verdict->serves);
    if (option == nullptr) {
      return invalid_argument(word.name + " is " + verdict->serves + ", which " + program() +
                              " does not have");
    }
    if (verdict->value) return add(*option, word.name, verdict->value);
    return add(*option, word.name, word.value);
  }

  CLI::App& command_;
  std::span<const std::string> words_;
  size_t next_ = 0;
  Arguments arguments_;
};

}  // namespace

bool Arguments::has(std::string_view long_name) const {
  return std::any_of(options.begin(), options.end(), [&](const GivenOption& given) {
    return kvik::cli::long_name(*given.option) == long_name;
  });
}

Result<Arguments> read_arguments(CLI::App& command, std::span<const std::string> words) {
  return Reader(command, words).read();
}

Status check_together(const CLI::App& command, const Arguments& arguments) {
  const bool has_prompt =
      arguments.has("--prompt") || arguments.has("--file") || arguments.has("--ids");
  if (Status status = check_modes(command, arguments.modes, has_prompt, arguments.has("--chat"));
      !status.ok()) {
    return status;
  }
  for (size_t i = 0; i < arguments.options.size(); ++i) {
    const GivenOption& one = arguments.options[i];
    const std::set<CLI::Option*> excluded = one.option->get_excludes();
    for (size_t j = 0; j < i; ++j) {
      const GivenOption& other = arguments.options[j];
      if (!excluded.contains(other.option)) continue;
      return invalid_argument(one.name + " excludes " + other.name + "; leave one out");
    }
  }
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_required() || option->get_positional()) continue;
    if (arguments.has(long_name(*option))) continue;
    return invalid_argument(long_name(*option) + " is missing");
  }
  return {};
}

std::vector<std::string> parser_words(const CLI::App& command, const Arguments& arguments) {
  std::vector<std::string> words = {command.get_name()};
  for (const GivenOption& given : arguments.options) {
    given_options()[given.option] = given;
    words.push_back(long_name(*given.option));
    if (!is_flag(*given.option)) words.push_back(given.value);
  }
  words.insert(words.end(), arguments.positionals.begin(), arguments.positionals.end());
  return words;
}

std::string name_given(const CLI::Option& option) {
  const auto found = given_options().find(&option);
  return found == given_options().end() ? long_name(option) : found->second.name;
}

std::string value_given(const CLI::Option& option) {
  const auto found = given_options().find(&option);
  return found == given_options().end() ? "" : found->second.value;
}

std::string in_given_names(const CLI::App& command, std::string message) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (name.empty() || !message.starts_with(name + ":")) continue;
    return name_given(*option) + message.substr(name.size());
  }
  return message;
}

std::string long_name(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_name() : "--" + option.get_lnames().front();
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  std::iota(d[0].begin(), d[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::string nearest(std::string_view name, std::span<const std::string> candidates) {
  return *std::min_element(candidates.begin(), candidates.end(),
                           [&](const std::string& a, const std::string& b) {
                             return edit_distance(name, a) < edit_distance(name, b);
                           });
}

std::optional<bool> parse_switch(std::string_view word) {
  std::string lower;
  for (const char c : word) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* const on : {"1", "true", "on", "yes"}) {
    if (lower == on) return true;
  }
  for (const char* const off : {"0", "false", "off", "no"}) {
    if (lower == off) return false;
  }
  return std::nullopt;
}

}  // namespace kvik::cli
