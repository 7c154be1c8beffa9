// The back end that runs on the processor.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kvik/backend/backend.h"
#include "kvik/core/cpu_features.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// Instruction sets that the kernels are compiled for. All of them give the same bits for the
// formats of this release; the promise of the project is bits per instruction set, and a tolerance
// between them.
enum class CpuIsa : uint8_t { scalar, avx2, avx512 };

// "scalar", "avx2", "avx512".
KVIK_API std::string_view cpu_isa_name(CpuIsa isa);

// Those that this build has and `features` can run, best first for that processor family (a table,
// never a measurement). Ends with scalar.
KVIK_API std::vector<CpuIsa> available_cpu_isas(const CpuFeatures& features);

struct CpuBackendOptions {
  int num_threads = 1;                           // the calling thread included
  CpuFeatures features = detect_cpu_features();  // another value pretends another processor
  std::optional<CpuIsa> isa = std::nullopt;      // none: the first of available_cpu_isas
  bool pin_threads = false;                      // one processor per thread; for benchmarks
};

// Errors: invalid_argument for a thread count below 1 or above 1024; unsupported when `isa` is not
// available, naming those that are, and when pinning is asked for and refused; out_of_memory when
// the system refuses to start the threads.
KVIK_API Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuBackendOptions& options);

}  // namespace kvik
