#include "kv_types.h"

#include <optional>

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

std::string replace_any_way(std::string& name) {
  const Result<CandidateFormat> parsed = parse_candidate_format(name);
  if (!parsed.ok()) return parsed.status().message();
  const std::string own = parsed->name();
  const std::string own_sides = own.substr(0, own.find('+'));
  const std::string sides = name.substr(0, name.find('+'));
  const size_t colon = own_sides.find(':');
  const std::string k = own_sides.substr(0, colon);
  const std::string v = colon == std::string::npos ? k : own_sides.substr(colon + 1);
  if (sides != own_sides && sides != k + ":" + v) {
    note(format("--kv %s: keys stored as %s, values as %s", sides.c_str(), k.c_str(), v.c_str()));
  }
  name = own;
  return {};
}

std::string replace_way(std::string& name) {
  // Names the formats without those that only eval knows.
  const Result<KvFormat> sides = resolve_format_name(name.substr(0, name.find('+')));
  return sides.ok() ? replace_any_way(name) : sides.status().message();
}

std::string replace_way_or_auto(std::string& name) {
  return name == "auto" ? std::string() : replace_way(name);
}

std::string replace_listed_way(std::string& name) {
  if (name != "auto") return replace_way(name);
  return "auto chooses one format for an answer (kvik run); name those to look at";
}

std::string replace_mode(std::string& name) {
  const Result<std::optional<KvCode>> mode = parse_kv_quant_mode(name);
  if (!mode.ok()) return mode.status().message();
  const std::string own(kv_code_name(mode->value_or(KvCode::f16)));
  note(format("--kv-quant %s: keys and values stored as %s", name.c_str(), own.c_str()));
  name = own;
  return {};
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
const CLI::Validator& kv_way() {
  static const CLI::Validator validator(replace_listed_way, "K:V");
  return validator;
}
const CLI::Validator& kv_way_or_auto() {
  static const CLI::Validator validator(replace_way_or_auto, "K:V|auto");
  return validator;
}
const CLI::Validator& kv_way_or_ggml() {
  static const CLI::Validator validator(replace_any_way, "K:V");
  return validator;
}
const CLI::Validator& kv_quant_mode() {
  static const CLI::Validator validator(replace_mode, "off|q8|q6|q4");
  return validator;
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
