// What the processor can do, as a plain value, so that tests and options can pretend another one.
#pragma once

#include <cstdint>
#include <string>

#include "kvik/core/export.h"

namespace kvik {

enum class CpuVendor : uint8_t { other, intel, amd };

struct CpuFeatures {
  CpuVendor vendor = CpuVendor::other;
  int family = 0;  // as CPUID reports it, extended parts added in
  int model = 0;
  bool fma = false;
  bool f16c = false;
  bool avx2 = false;
  bool avx512 = false;  // F, BW, DQ and VL together, with the system saving the registers
  bool avx512_vnni = false;
  bool avx512_vbmi = false;
  bool avx512_bf16 = false;
  bool amx_bf16 = false;
  bool amx_int8 = false;
};

// Reads the processor this thread runs on. No environment, no global state.
KVIK_API CpuFeatures detect_cpu_features();

// One line for reports: "amd family 25 model 1: fma f16c avx2".
KVIK_API std::string describe(const CpuFeatures& features);

}  // namespace kvik
