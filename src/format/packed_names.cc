// The name spaces of the packed formats.
#include <algorithm>
#include <array>
#include <string>

#include "kvik/format/packed_code.h"

namespace kvik {
namespace {

struct Spelling {
  std::string_view name;
  PackedCode code;
};

constexpr std::array<std::string_view, 7> kOff = {"",  "off",      "none",   "false",
                                                  "0", "disabled", "disable"};

constexpr std::array<Spelling, 17> kKvQuantModes = {{
    {"q8", PackedCode::q8},
    {"8", PackedCode::q8},
    {"8bit", PackedCode::q8},
    {"int8", PackedCode::q8},
    {"uint8", PackedCode::q8},
    {"q8_0", PackedCode::q8},
    {"q6", PackedCode::q6},
    {"6", PackedCode::q6},
    {"6bit", PackedCode::q6},
    {"int6", PackedCode::q6},
    {"uint6", PackedCode::q6},
    {"q4", PackedCode::q4},
    {"4", PackedCode::q4},
    {"4bit", PackedCode::q4},
    {"int4", PackedCode::q4},
    {"uint4", PackedCode::q4},
    {"q4_0", PackedCode::q4},
}};

constexpr std::array<Spelling, 9> kTurboQuantKeys = {{
    {"q8_0", PackedCode::tqk_q8_0},
    {"int8", PackedCode::tqk_q8_0},
    {"uint8", PackedCode::tqk_uint8},
    {"q5_0", PackedCode::tqk_q5_0},
    {"q4_0", PackedCode::tqk_q4_0},
    {"int4", PackedCode::tqk_q4_0},
    {"uint4", PackedCode::tqk_q4_0},
    {"int2", PackedCode::tqk_int2},
    {"uint2", PackedCode::tqk_int2},
}};

constexpr std::array<Spelling, 5> kTurboQuantValues = {{
    {"q2_0", PackedCode::tqv_q2_0},
    {"q3_0", PackedCode::tqv_q3_0},
    {"q4_0", PackedCode::tqv_q4_0},
    {"q5_0", PackedCode::tqv_q5_0},
    {"q8_0", PackedCode::tqv_q8_0},
}};

std::string join(std::string names, std::string_view name) {
  if (!names.empty()) names += ", ";
  return names.append(name);
}

Result<PackedCode> find(std::span<const Spelling> spellings, std::string_view name,
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

Result<PackedCode> parse_packed_code(std::string_view name) {
  std::string known;
  for (const PackedCode code : all_packed_codes()) {
    if (packed_code_name(code) == name) return code;
    known = join(std::move(known), packed_code_name(code));
  }
  return invalid_argument("unknown packed format '" + std::string(name) + "'; known are " + known);
}

Result<std::optional<PackedCode>> parse_kv_quant_mode(std::string_view name) {
  std::string plain(name);
  for (char& c : plain) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-') c = '_';
  }
  if (std::find(kOff.begin(), kOff.end(), plain) != kOff.end()) {
    return std::optional<PackedCode>();
  }
  const Result<PackedCode> code = find(kKvQuantModes, plain, "KV-Quant mode");
  if (code.ok()) return std::optional(code.value());
  return invalid_argument(code.status().message() + ", and off");
}

Result<PackedCode> parse_turboquant_key(std::string_view name) {
  return find(kTurboQuantKeys, name, "TurboQuant key type");
}

Result<PackedCode> parse_turboquant_value(std::string_view name) {
  return find(kTurboQuantValues, name, "TurboQuant value type");
}

}  // namespace kvik
