#include "kvik/core/cpu_features.h"

#include <array>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvik {

#if defined(__x86_64__)
namespace {

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf = 0) {
  Leaf r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

bool bit(unsigned value, int n) { return ((value >> n) & 1u) != 0; }

// Which register states the system saves on a context switch (XCR0).
uint64_t saved_state() {
  unsigned low = 0;
  unsigned high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

}  // namespace

CpuFeatures detect_cpu_features() {
  CpuFeatures f;
  const Leaf vendor = cpuid(0);
  if (vendor.ebx == 0x756e6547u) f.vendor = CpuVendor::intel;  // "Genu"ineIntel
  if (vendor.ebx == 0x68747541u) f.vendor = CpuVendor::amd;    // "Auth"enticAMD

  const Leaf one = cpuid(1);
  const unsigned base_family = (one.eax >> 8) & 0xfu;
  f.family =
      static_cast<int>(base_family == 0xfu ? base_family + ((one.eax >> 20) & 0xffu) : base_family);
  f.model = static_cast<int>(((one.eax >> 4) & 0xfu) | (((one.eax >> 16) & 0xfu) << 4));

  const bool osxsave = bit(one.ecx, 27);
  const uint64_t saved = osxsave ? saved_state() : 0;
  const bool ymm = (saved & 0x6u) == 0x6u;
  const bool zmm = (saved & 0xe6u) == 0xe6u;
  const bool tiles = (saved & 0x60000u) == 0x60000u;
  const Leaf seven = cpuid(7);
  const Leaf seven_one = cpuid(7, 1);
  f.fma = ymm && bit(one.ecx, 12);
  f.f16c = ymm && bit(one.ecx, 29);
  f.avx2 = ymm && bit(seven.ebx, 5);
  f.avx512 =
      zmm && bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 30) && bit(seven.ebx, 31);
  f.avx512_vnni = f.avx512 && bit(seven.ecx, 11);
  f.avx512_vbmi = f.avx512 && bit(seven.ecx, 1);
  f.avx512_bf16 = f.avx512 && bit(seven_one.eax, 5);
  f.amx_bf16 = tiles && bit(seven.edx, 22);
  f.amx_int8 = tiles && bit(seven.edx, 25);
  return f;
}
#else
CpuFeatures detect_cpu_features() { return {}; }
#endif

std::string describe(const CpuFeatures& f) {
  const char* vendor = f.vendor == CpuVendor::intel ? "intel"
                       : f.vendor == CpuVendor::amd ? "amd"
                                                    : "other";
  std::string text = std::string(vendor) + " family " + std::to_string(f.family) + " model " +
                     std::to_string(f.model) + ":";
  const std::array<std::pair<bool, const char*>, 9> flags = {{{f.fma, "fma"},
                                                              {f.f16c, "f16c"},
                                                              {f.avx2, "avx2"},
                                                              {f.avx512, "avx512"},
                                                              {f.avx512_vnni, "avx512-vnni"},
                                                              {f.avx512_vbmi, "avx512-vbmi"},
                                                              {f.avx512_bf16, "avx512-bf16"},
                                                              {f.amx_bf16, "amx-bf16"},
                                                              {f.amx_int8, "amx-int8"}}};
  for (const auto& [present, name] : flags) {
    if (present) text += std::string(" ") + name;
  }
  return text;
}

}  // namespace kvik
