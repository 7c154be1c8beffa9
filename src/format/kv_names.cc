#include "kvik/format/kv_names.h"

#include <array>
#include <string>

namespace kvik {
namespace {

struct ForeignName {
  std::string_view name;
  KvFormat format;  // by side
};

constexpr std::array<ForeignName, 6> kTypes = {{
    {"q8_0", {KvCode::tq8, KvCode::tq8}},
    {"q5_1", {KvCode::tqk_q5_0, KvCode::tqv_q5_0}},
    {"q5_0", {KvCode::tqk_q5_0, KvCode::tqv_q5_0}},
    {"q4_1", {KvCode::tcq4, KvCode::tcq4}},
    {"q4_0", {KvCode::tcq4, KvCode::tcq4}},
    {"iq4_nl", {KvCode::tcq4, KvCode::tcq4}},
}};

constexpr std::array<ForeignName, 5> kPresets = {{
    {"fp8", {KvCode::tq8, KvCode::tq8}},
    {"turboquant_k8v4", {KvCode::tq8, KvCode::tcq4}},
    {"turboquant_4bit_nc", {KvCode::tcq4, KvCode::tcq4}},
    {"turboquant_k3v4_nc", {KvCode::tcq3, KvCode::tcq4}},
    {"turboquant_3bit_nc", {KvCode::tcq3, KvCode::tcq3}},
}};

std::string list(std::span<const ForeignName> names) {
  std::string text;
  for (const ForeignName& each : names) {
    text += (text.empty() ? "" : ", ") + std::string(each.name);
  }
  return text;
}

std::string list_codes(bool for_keys) {
  std::string text;
  for (const KvCode code : all_kv_codes()) {
    if (!(for_keys ? stores_keys(code) : stores_values(code))) continue;
    text += (text.empty() ? "" : ", ") + std::string(kv_code_name(code));
  }
  return text;
}

Result<KvCode> resolve(std::string_view name, bool for_keys) {
  for (const ForeignName& type : kTypes) {
    if (type.name == name) return for_keys ? type.format.k : type.format.v;
  }
  const Result<KvCode> code = parse_kv_code(name);
  if (!code.ok()) {
    return invalid_argument("unknown KV format '" + std::string(name) + "' for " +
                            (for_keys ? "keys" : "values") + "; known are " + list_codes(for_keys) +
                            ", and of llama.cpp " + list(kTypes));
  }
  if (for_keys ? stores_keys(code.value()) : stores_values(code.value())) return code;
  return invalid_argument(std::string(name) + " stores " + (for_keys ? "values" : "keys") +
                          " only; for " + (for_keys ? "keys" : "values") + " choose one of " +
                          list_codes(for_keys));
}

}  // namespace

std::vector<std::string_view> foreign_type_names() {
  // What is taken as it is stands among our own names.
  std::vector<std::string_view> names;
  for (const ForeignName& type : kTypes) names.push_back(type.name);
  return names;
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const ForeignName& preset : kPresets) names.push_back(preset.name);
  return names;
}

Result<KvCode> resolve_key_name(std::string_view name) { return resolve(name, true); }

Result<KvCode> resolve_value_name(std::string_view name) { return resolve(name, false); }

Result<KvFormat> resolve_format_name(std::string_view name) {
  for (const ForeignName& preset : kPresets) {
    if (preset.name == name) return preset.format;
  }
  const size_t colon = name.find(':');
  const Result<KvCode> k = resolve(name.substr(0, colon), true);
  const Result<KvCode> v =
      resolve(colon == std::string_view::npos ? name : name.substr(colon + 1), false);
  if (k.ok() && v.ok()) return KvFormat{k.value(), v.value()};
  const Status& wrong = k.ok() ? v.status() : k.status();
  if (colon != std::string_view::npos) return wrong;
  return invalid_argument(wrong.message() +
                          "; for both sides give K:V, or a preset of vLLM: " + list(kPresets));
}

}  // namespace kvik
