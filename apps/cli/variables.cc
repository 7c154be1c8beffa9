#include "variables.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "cli.h"
#include "kvik/eval/candidate.h"
#include "kvik/format/kv_names.h"
#include "kvik/format/packed_code.h"
#include "numbers.h"

namespace kvik::cli {
namespace {

// Options whose name means something else in other commands: what run reads from --file is a
// prompt, and --output of most commands is a form, not a file.
constexpr std::pair<std::string_view, std::string_view> kOfOneCommand[] = {
    {"template", "--file"}, {"calibrate", "--file"}, {"calibrate", "--output"}};

// Read by the program elsewhere, by the Python package or by the scripts.
constexpr std::string_view kOtherVariables[] = {"KVIK_CACHE_DIR", "KVIK_PROGRAM",
                                                "KVIK_REQUIRE_MODELS", "KVIK_TEST_MODELS"};

std::string as_variable(std::string_view name) {
  std::string variable = "KVIK_";
  for (const char c : name) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

// Two options of which one leaves the other without effect, as far as their values go (empty: any
// value). The variable among them gives way; `only_other`: only if it is the second.
struct Contradiction {
  std::string_view option, value, other, other_value;
  bool only_other = false;
};
constexpr Contradiction kContradictions[] = {
    {"--kv-layout", "contiguous", "--block-size", ""},
    {"--kv-layout", "contiguous", "--overflow", "window"},
    {"--kv-layout", "contiguous", "--overflow", "shift"},
    {"--overflow", "stop", "--keep", ""},
    {"--overflow", "window", "--keep", ""},
    {"--overflow", "shift", "--kv-recent", ""},
    {"--overflow", "shift", "--kv-skip-layers", ""},
    {"--overflow", "shift", "--kv-calib", "off"},
    {"--kv-calib", "off", "--kv-frame", ""},
    {"--temp", "0", "--top-k", "", true},
    {"--temp", "0", "--top-p", "", true},
    {"--temp", "0", "--min-p", "", true},
    {"--temp", "0", "--seed", "", true},
    {"--long", "", "--all-positions", ""},
};

bool has_value(const GivenOption& given, std::string_view value) {
  if (value.empty() || given.value == value) return true;
  const Result<double> number = parse_real(given.value, -1, 1);
  return value == "0" && number.ok() && *number == 0;
}

bool contradicts(const GivenOption& variable, const GivenOption& typed) {
  const std::string mine = long_name(*variable.option), theirs = long_name(*typed.option);
  for (const Contradiction& each : kContradictions) {
    if (theirs == each.option && has_value(typed, each.value) && mine == each.other &&
        has_value(variable, each.other_value)) {
      return true;
    }
    if (!each.only_other && mine == each.option && has_value(variable, each.value) &&
        theirs == each.other && has_value(typed, each.other_value)) {
      return true;
    }
  }
  return false;
}

// What the types that were given can use.
struct Types {
  bool are_typed = false;      // one of them on the command line
  bool is_auto_typed = false;  // --kv auto there
  bool is_packed = false;      // some rows are; they may be kept wider
  bool is_rotated = false;     // some keys are; they may be calibrated
};

void add_format(Types& types, const Result<KvFormat>& format) {
  // A name that is none is refused later; nothing gives way to it.
  types.is_packed |= !format.ok() || is_packed(format->k) || is_packed(format->v);
  types.is_rotated |= !format.ok() || is_rotated(format->k);
}

Result<KvFormat> key_format(std::string_view name) {
  const Result<KvCode> code = resolve_key_name(name);
  if (!code.ok()) return code.status();
  return KvFormat{*code, KvCode::f16};
}
Result<KvFormat> value_format(std::string_view name) {
  const Result<KvCode> code = resolve_value_name(name);
  if (!code.ok()) return code.status();
  return KvFormat{KvCode::f16, *code};
}
Result<KvFormat> way_format(std::string_view name) {
  const Result<CandidateFormat> way = parse_candidate_format(name);
  if (!way.ok()) return way.status();
  return way->format;
}
Result<KvFormat> mode_format(std::string_view name) {
  const Result<std::optional<KvCode>> mode = parse_kv_quant_mode(name);
  if (!mode.ok()) return mode.status();
  const KvCode code = mode->value_or(KvCode::f16);
  return KvFormat{code, code};
}

Types types_of(const Arguments& arguments) {
  Types types;
  using Parse = Result<KvFormat> (*)(std::string_view);
  const std::map<std::string, Parse> parsers = {{"--cache-type-k", key_format},
                                                {"--cache-type-v", value_format},
                                                {"--kv", way_format},
                                                {"--paged-kv-quant", mode_format},
                                                {"--kv-quality", nullptr}};
  for (const GivenOption& given : arguments.options) {
    const auto parser = parsers.find(long_name(*given.option));
    if (parser == parsers.end()) continue;
    types.are_typed |= !given.is_variable;
    if (parser->second == nullptr || given.value == "auto") {
      types.is_auto_typed |= parser->second != nullptr && !given.is_variable;
      types.is_packed = types.is_rotated = true;
      continue;
    }
    const char delimiter = given.option->get_delimiter();
    for (const std::string& name : delimiter == '\0' ? std::vector{given.value}
                                                     : CLI::detail::split(given.value, delimiter)) {
      add_format(types, parser->second(name));
    }
  }
  return types;
}

// Without its effect beside the types of the command line.
bool is_idle(const CLI::App& command, const Types& types, const std::string& name) {
  if (!types.are_typed) return false;
  if (name == "--kv-first" || name == "--kv-recent" || name == "--kv-skip-layers") {
    return !types.is_packed;
  }
  if (name == "--kv-calib" || name == "--kv-frame") return !types.is_rotated;
  // The memory that `plan` asks about is another matter.
  return name == "--mem" && command.get_name() != "plan" && !types.is_auto_typed;
}

// Takes the endings off that an option of the command line replaces.
void cut_endings(std::string& way, const Arguments& arguments) {
  std::string rest = way.substr(0, way.find('+'));
  for (size_t plus = way.find('+'); plus != way.npos;) {
    const size_t next = way.find_first_of("+,", plus + 1);
    const std::string ending = way.substr(plus, next == way.npos ? next : next - plus);
    const auto is_replaced = [&](const GivenOption& given) {
      const std::string name = long_name(*given.option);
      return !given.is_variable &&
             ((name == "--kv-first" && ending.starts_with("+first")) ||
              (name == "--kv-recent" && ending.starts_with("+recent")) ||
              (name == "--kv-skip-layers" && ending.starts_with("+skip")) ||
              ((name == "--kv-calib" || name == "--kv-frame") && ending == "+nocalib"));
    };
    if (std::none_of(arguments.options.begin(), arguments.options.end(), is_replaced)) {
      rest += ending;
    }
    // A list goes on with another way.
    plus = way.find('+', next);
    if (next != way.npos && way[next] == ',') rest += way.substr(next, plus - next);
    if (plus == way.npos) break;
  }
  way = rest;
}

// The ending of --kv on the command line that says what a variable says.
bool is_said_by_ending(const GivenOption& variable, const GivenOption& typed) {
  if (long_name(*typed.option) != "--kv") return false;
  const std::string name = long_name(*variable.option);
  const auto has = [&](const char* ending) {
    return typed.value.find(ending) != std::string::npos;
  };
  return (name == "--kv-first" && has("+first")) || (name == "--kv-recent" && has("+recent")) ||
         (name == "--kv-skip-layers" && has("+skip")) ||
         ((name == "--kv-calib" || name == "--kv-frame") && has("+nocalib"));
}

void give_way(const CLI::App& command, Arguments& arguments) {
  const auto gives_way_to = [](const GivenOption& variable, const GivenOption& typed) {
    return !typed.is_variable &&
           (variable.option->get_excludes().contains(typed.option) ||
            contradicts(variable, typed) || is_said_by_ending(variable, typed));
  };
  std::erase_if(arguments.options, [&, all = arguments.options](const GivenOption& given) {
    return given.is_variable && std::any_of(all.begin(), all.end(), [&](const GivenOption& other) {
             return gives_way_to(given, other);
           });
  });
  const Types types = types_of(arguments);
  std::erase_if(arguments.options, [&](const GivenOption& given) {
    return given.is_variable && is_idle(command, types, long_name(*given.option));
  });
  for (GivenOption& given : arguments.options) {
    if (given.is_variable && long_name(*given.option) == "--kv") {
      cut_endings(given.value, arguments);
    }
  }
}

}  // namespace

std::string variable_name(const CLI::App& command, const CLI::Option& option) {
  if (option.get_lnames().empty()) return "";
  const std::string& name = option.get_lnames().front();
  if (name == "help" || name == "version") return "";
  const std::pair<std::string_view, std::string_view> own = {command.get_name(), long_name(option)};
  const bool is_own =
      std::find(std::begin(kOfOneCommand), std::end(kOfOneCommand), own) != std::end(kOfOneCommand);
  return as_variable(is_own ? command.get_name() + "-" + name : name);
}

Status add_variables(CLI::App& command, Arguments& arguments) {
  for (CLI::Option* option : command.get_options()) {
    const std::string variable = variable_name(command, *option);
    if (variable.empty() || arguments.has(long_name(*option))) continue;
    const char* const value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') continue;
    GivenOption given = {option, value, variable, true};
    if (option->get_items_expected_max() == 0) {
      const std::optional<bool> is_on = parse_switch(value);
      if (!is_on) {
        return invalid_argument(variable + ": '" + value + "' is neither on (1) nor off (0)");
      }
      if (!*is_on) continue;
      given.value.clear();
    }
    arguments.options.push_back(std::move(given));
  }
  give_way(command, arguments);
  return {};
}

void warn_of_misspelt_variables(const CLI::App& program) {
  std::map<std::string, std::string> known;  // names that may be meant, and the one that is read
  for (const CLI::App* command : program.get_subcommands({})) {
    for (const CLI::Option* option : command->get_options()) {
      const std::string variable = variable_name(*command, *option);
      if (variable.empty()) continue;
      for (const std::string& name : option->get_lnames())
        known.emplace(as_variable(name), variable);
      known[variable] = variable;
    }
  }
  std::vector<std::string> names;
  for (const std::string_view name : kOtherVariables) known.emplace(name, name);
  for (const auto& [name, variable] : known) names.push_back(name);
  for (const LlamaOption& option : llama_options()) {
    const std::string served =
        as_variable(option.text.substr(std::min<size_t>(2, option.text.size())));
    if (option.effect != LlamaOption::Effect::serve || !known.contains(served)) continue;
    for (const std::string& name : CLI::detail::split(std::string(option.names), ' ')) {
      if (name.starts_with("--")) known.emplace(as_variable(name.substr(2)), known[served]);
    }
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("KVIK_")) continue;
    const auto same = known.find(name);
    if (same != known.end() && same->second == name) continue;
    const std::string meant = same != known.end() ? same->second : nearest(name, names);
    // Another program's variable is not ours to judge.
    const size_t allowed = std::max<size_t>(1, (name.size() - 5) / 4);
    if (same == known.end() && edit_distance(name, meant) > allowed) continue;
    warn(name + " is not read; is " + known[meant] + " meant?");
  }
}

void show_variables(CLI::App& program) {
  for (CLI::App* command : program.get_subcommands({})) {
    for (CLI::Option* option : command->get_options()) {
      option->envname(variable_name(*command, *option));
    }
  }
}

}  // namespace kvik::cli
