#include "kvik/core/cpu_isa.h"

#include <array>

namespace kvik {
namespace {

// Whether this build has the kernels.
bool is_built(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::scalar:
      return true;
    case CpuIsa::avx2:
#ifdef KVIK_HAVE_SPINE_AVX2
      return true;
#else
      return false;
#endif
    case CpuIsa::avx512:
#ifdef KVIK_HAVE_SPINE_AVX512
      return true;
#else
      return false;
#endif
  }
  return false;
}

bool can_run(CpuIsa isa, const CpuFeatures& features) {
  const bool avx2 = features.avx2 && features.fma && features.f16c;
  switch (isa) {
    case CpuIsa::scalar:
      return true;
    case CpuIsa::avx2:
      return avx2;
    case CpuIsa::avx512:
      return avx2 && features.avx512;
  }
  return false;
}

// The order in which the instruction sets are preferred, by processor family; the first row that
// fits wins. Families whose 512-bit units slow the whole core down would get a row of their own.
struct FamilyRow {
  CpuVendor vendor;
  int family;  // 0: any
  std::array<CpuIsa, 3> order;
};
constexpr std::array kFamilies = {
    FamilyRow{CpuVendor::amd, 0, {CpuIsa::avx512, CpuIsa::avx2, CpuIsa::scalar}},
    FamilyRow{CpuVendor::intel, 6, {CpuIsa::avx512, CpuIsa::avx2, CpuIsa::scalar}},
    FamilyRow{CpuVendor::other, 0, {CpuIsa::avx512, CpuIsa::avx2, CpuIsa::scalar}},
};

const FamilyRow& family_row(const CpuFeatures& features) {
  for (const FamilyRow& row : kFamilies) {
    if (row.vendor == features.vendor && (row.family == 0 || row.family == features.family)) {
      return row;
    }
  }
  return kFamilies.back();
}

}  // namespace

std::string_view cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::scalar:
      return "scalar";
    case CpuIsa::avx2:
      return "avx2";
    case CpuIsa::avx512:
      return "avx512";
  }
  return "unknown";
}

std::vector<CpuIsa> available_cpu_isas(const CpuFeatures& features) {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : family_row(features).order) {
    if (is_built(isa) && can_run(isa, features)) isas.push_back(isa);
  }
  return isas;
}

}  // namespace kvik
