// The instruction sets that kernels are compiled for.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvik/core/cpu_features.h"
#include "kvik/core/export.h"

namespace kvik {

// All of them give the same bits for the formats of this release; the promise of the project is
// bits per instruction set, and a tolerance between them.
enum class CpuIsa : uint8_t { scalar, avx2, avx512 };

// "scalar", "avx2", "avx512".
KVIK_API std::string_view cpu_isa_name(CpuIsa isa);

// Those that this build has and `features` can run, best first for that processor family (a table,
// never a measurement). Ends with scalar.
KVIK_API std::vector<CpuIsa> available_cpu_isas(const CpuFeatures& features);

}  // namespace kvik
