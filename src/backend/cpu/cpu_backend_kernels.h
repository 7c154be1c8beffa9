// Makes a CPU back end from any set of kernels; how tests run kernels that are not in the library's
// table.
#pragma once

#include <memory>
#include <string>

#include "backend/cpu/attend_task.h"
#include "kvik/backend/backend.h"
#include "kvik/backend/cpu_backend.h"

namespace kvik::cpu {

// Requires: num_threads >= 1; the processor runs the kernels.
std::unique_ptr<Backend> make_backend_of_kernels(const AttendKernels& kernels, std::string name,
                                                 KernelSet kernel_set, int num_threads);

}  // namespace kvik::cpu
