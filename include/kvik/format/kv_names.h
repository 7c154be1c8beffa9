// Names of storage formats as users know them: ours, and those of llama.cpp and vLLM. One parser
// for every entrance.
//
// A foreign name stands for the nearest of our codes that loses no more bits:
//   f32 f16 bf16          themselves
//   q8_0                  tq8
//   q5_1 q5_0             tqk_q5_0 for keys, tqv_q5_0 for values (head dims in multiples of 32)
//   q4_1 q4_0 iq4_nl      tcq4
// Presets of vLLM name both sides: fp8 = tq8:tq8, turboquant_k8v4 = tq8:tcq4, turboquant_4bit_nc =
// tcq4:tcq4, turboquant_k3v4_nc = tcq3:tcq4, turboquant_3bit_nc = tcq3:tcq3. TurboQuant's own type
// names and KV-Quant's modes mean other formats and have parsers of their own (packed_code.h).
#pragma once

#include <string_view>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/format/kv_format.h"

namespace kvik {

// The code that stores keys (values) under `name`. Errors: invalid_argument that lists the names,
// or says that the code stores the other side only.
KVIK_API Result<KvCode> resolve_key_name(std::string_view name);
KVIK_API Result<KvCode> resolve_value_name(std::string_view name);

// "K:V", one name for both sides, or a preset. Errors: as above.
KVIK_API Result<KvFormat> resolve_format_name(std::string_view name);

// The foreign names of types, and those of presets.
KVIK_API std::vector<std::string_view> foreign_type_names();
KVIK_API std::vector<std::string_view> preset_names();

}  // namespace kvik
