// The back end that runs on the processor.
#pragma once

#include <memory>
#include <optional>

#include "kvik/backend/backend.h"
#include "kvik/core/cpu_features.h"
#include "kvik/core/cpu_isa.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/core/thread_team.h"

namespace kvik {

// How packed rows are computed with; plain ones always as `exact` says.
//   exact  queries and weights in f32
//   fast   queries and weights as integers of 15 bits for codes with one scale a row (q*, tq*,
//          tcq*); the error, 6e-5 of a row's largest element, is far below that of the codes
// Both give the same bits whatever the batch, the chunking, the block size and the threads.
enum class KernelSet : uint8_t { exact, fast };

struct CpuBackendOptions {
  int num_threads = 1;                           // the calling thread included
  CpuFeatures features = detect_cpu_features();  // another value pretends another processor
  std::optional<CpuIsa> isa = std::nullopt;      // none: the first of available_cpu_isas
  bool pin_threads = false;                      // one processor per thread; for benchmarks
  KernelSet kernel_set = KernelSet::fast;
  // A team to share with other work of the same thread, which must not run it at the same time as
  // the back end; num_threads is then unused. None: the back end makes its own.
  std::shared_ptr<ThreadTeam> team = nullptr;
};

// Errors: invalid_argument for a thread count below 1 or above 1024; unsupported when `isa` is not
// available, naming those that are, and when pinning is asked for and refused; out_of_memory when
// the system refuses to start the threads.
KVIK_API Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuBackendOptions& options);

}  // namespace kvik
