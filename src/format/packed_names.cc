// The name spaces of the packed formats.
#include <algorithm>
#include <array>
#include <string>

#include "kvik/format/packed_code.h"

namespace kvik {
namespace {

struct Spelling {
  std::string_view name;
  KvCode code;
};

constexpr std::array<std::string_view, 7> kOff = {"",  "off",      "none",   "false",
                                                  "0", "disabled", "disable"};

constexpr std::array<Spelling, 17> kKvQuantModes = {{
    {"q8", KvCode::q8},
    {"8", KvCode::q8},
    {"8bit", KvCode::q8},
    {"int8", KvCode::q8},
    {"uint8", KvCode::q8},
    {"q8_0", KvCode::q8},
    {"q6", KvCode::q6},
    {"6", KvCode::q6},
    {"6bit", KvCode::q6},
    {"int6", KvCode::q6},
    {"uint6", KvCode::q6},
    {"q4", KvCode::q4},
    {"4", KvCode::q4},
    {"4bit", KvCode::q4},
    {"int4", KvCode::q4},
    {"uint4", KvCode::q4},
    {"q4_0", KvCode::q4},
}};

constexpr std::array<Spelling, 9> kTurboQuantKeys = {{
    {"q8_0", KvCode::tqk_q8_0},
    {"int8", KvCode::tqk_q8_0},
    {"uint8", KvCode::tqk_uint8},
    {"q5_0", KvCode::tqk_q5_0},
    {"q4_0", KvCode::tqk_q4_0},
    {"int4", KvCode::tqk_q4_0},
    {"uint4", KvCode::tqk_q4_0},
    {"int2", KvCode::tqk_int2},
    {"uint2", KvCode::tqk_int2},
}};

constexpr std::array<Spelling, 5> kTurboQuantValues = {{
    {"q2_0", KvCode::tqv_q2_0},
    {"q3_0", KvCode::tqv_q3_0},
    {"q4_0", KvCode::tqv_q4_0},
    {"q5_0", KvCode::tqv_q5_0},
    {"q8_0", KvCode::tqv_q8_0},
}};

std::string join(std::string names, std::string_view name) {
  if (!names.empty()) names += ", ";
  return names.append(name);
}

Result<KvCode> find(std::span<const Spelling> spellings, std::string_view name,
                    std::string_view what) {
  std::string known;
  for (const Spelling& spelling : spellings) {
    if (spelling.name == name) return spelling.code;
    known = join(std::move(known), spelling.name);
  }
  return invalid_argument("unknown " + std::string(what) + " '" + std::string(name) +
                          "'; known are " + known);
}

}  // namespace

Result<std::optional<KvCode>> parse_kv_quant_mode(std::string_view name) {
  std::string plain(name);
  for (char& c : plain) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-') c = '_';
  }
  if (std::find(kOff.begin(), kOff.end(), plain) != kOff.end()) {
    return std::optional<KvCode>();
  }
  const Result<KvCode> code = find(kKvQuantModes, plain, "KV-Quant mode");
  if (code.ok()) return std::optional(code.value());
  return invalid_argument(code.status().message() + ", and off");
}

Result<KvCode> parse_turboquant_key(std::string_view name) {
  return find(kTurboQuantKeys, name, "TurboQuant key type");
}

Result<KvCode> parse_turboquant_value(std::string_view name) {
  return find(kTurboQuantValues, name, "TurboQuant value type");
}

}  // namespace kvik
