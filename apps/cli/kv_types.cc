#include "kv_types.h"

#include <optional>

#include "arguments.h"
#include "cli.h"
#include "kvik/eval/candidate.h"
#include "kvik/format/kv_names.h"
#include "kvik/format/packed_code.h"

namespace kvik::cli {
namespace {

// Puts our name in the place of `name`; an error text, or empty.
std::string replace_type(const Result<KvCode>& code, const char* side, std::string& name) {
  if (!code.ok()) return code.status().message();
  const std::string_view own = kv_code_name(code.value());
  if (own != name) note(format("%s as %s: stored as %s", side, name.c_str(), own.data()));
  name = own;
  return {};
}

std::string replace_key_type(std::string& name) {
  return replace_type(resolve_key_name(name), "keys", name);
}
std::string replace_value_type(std::string& name) {
  return replace_type(resolve_value_name(name), "values", name);
}

std::string replace_any_way(const CLI::Option& option, std::string& name) {
  const Result<CandidateFormat> parsed = parse_candidate_format(name);
  if (!parsed.ok()) return parsed.status().message();
  const std::string own = parsed->name();
  const std::string own_sides = own.substr(0, own.find('+'));
  const std::string sides = name.substr(0, name.find('+'));
  const size_t colon = own_sides.find(':');
  const std::string k = own_sides.substr(0, colon);
  const std::string v = colon == std::string::npos ? k : own_sides.substr(colon + 1);
  if (sides != own_sides && sides != k + ":" + v) {
    note(format("%s %s: keys stored as %s, values as %s", name_given(option).c_str(), sides.c_str(),
                k.c_str(), v.c_str()));
  }
  name = own;
  return {};
}

std::string replace_way(const CLI::Option& option, std::string& name) {
  // Names the formats without those that only eval knows.
  const Result<KvFormat> sides = resolve_format_name(name.substr(0, name.find('+')));
  return sides.ok() ? replace_any_way(option, name) : sides.status().message();
}

std::string replace_way_or_auto(const CLI::Option& option, std::string& name) {
  return name == "auto" ? std::string() : replace_way(option, name);
}

std::string replace_listed_way(const CLI::Option& option, std::string& name) {
  if (name != "auto") return replace_way(option, name);
  return "auto chooses one format for an answer (kvik run); name those to look at";
}

std::string replace_mode(const CLI::Option& option, std::string& name) {
  const Result<std::optional<KvCode>> mode = parse_kv_quant_mode(name);
  if (!mode.ok()) return mode.status().message();
  const std::string own(kv_code_name(mode->value_or(KvCode::f16)));
  note(format("%s %s: keys and values stored as %s", name_given(option).c_str(), name.c_str(),
              own.c_str()));
  name = own;
  return {};
}

// Options outlive the validators that belong to them.
CLI::Validator validator_of(const CLI::Option& option,
                            std::string (*replace)(const CLI::Option&, std::string&),
                            const char* description) {
  return {[&option, replace](std::string& name) { return replace(option, name); }, description};
}

}  // namespace

const CLI::Validator& key_type() {
  static const CLI::Validator validator(replace_key_type, "TYPE");
  return validator;
}
const CLI::Validator& value_type() {
  static const CLI::Validator validator(replace_value_type, "TYPE");
  return validator;
}
CLI::Validator kv_way(const CLI::Option& option) {
  return validator_of(option, replace_listed_way, "K:V");
}
CLI::Validator kv_way_or_auto(const CLI::Option& option) {
  return validator_of(option, replace_way_or_auto, "K:V|auto");
}
CLI::Validator kv_way_or_ggml(const CLI::Option& option) {
  return validator_of(option, replace_any_way, "K:V");
}
CLI::Validator kv_quant_mode(const CLI::Option& option) {
  return validator_of(option, replace_mode, "off|q8|q6|q4");
}

namespace {

std::vector<std::string> type_names(bool for_keys, bool for_values) {
  std::vector<std::string> names;
  for (const KvCode code : all_kv_codes()) {
    if (for_keys && !stores_keys(code)) continue;
    if (for_values && !stores_values(code)) continue;
    names.emplace_back(kv_code_name(code));
  }
  for (const std::string_view name : foreign_type_names()) names.emplace_back(name);
  return names;
}

}  // namespace

std::vector<std::string> key_type_names() { return type_names(true, false); }
std::vector<std::string> value_type_names() { return type_names(false, true); }

std::vector<std::string> way_names() {
  std::vector<std::string> names = type_names(true, true);
  for (const std::string_view name : preset_names()) names.emplace_back(name);
  return names;
}

KvFormat kv_format(const std::string& type_k, const std::string& type_v) {
  return {parse_kv_code(type_k).value(), parse_kv_code(type_v).value()};
}

std::vector<KvFormat> listed_formats(const ModelInfo& info) {
  std::vector<KvFormat> formats;
  for (const KvCode code : all_kv_codes()) {
    if (stores_keys(code) && stores_values(code)) formats.push_back({code, code});
  }
  formats.insert(formats.end(), {{KvCode::tqk_q8_0, KvCode::tqv_q8_0},
                                 {KvCode::tqk_q5_0, KvCode::tqv_q5_0},
                                 {KvCode::tqk_q4_0, KvCode::tqv_q4_0},
                                 {KvCode::tqk_int2, KvCode::tqv_q2_0}});
  std::erase_if(formats, [&](const KvFormat& format) {
    return !check_keys(format.k, info.head_dim_k).ok() ||
           !check_values(format.v, info.head_dim_v).ok();
  });
  return formats;
}

}  // namespace kvik::cli
