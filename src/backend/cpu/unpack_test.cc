// Unpacked tiles are the decoded rows, bit for bit, on every instruction set of this machine.
#include <gtest/gtest.h>

#include <cstring>

#include "kvik/core/cpu_features.h"
#include "kvik/core/cpu_isa.h"
#include "support/unpack_case.h"

namespace kvik::test {
namespace {

const cpu::AttendKernels& kernels_for(CpuIsa isa) {
#ifdef KVIK_HAVE_SPINE_AVX2
  if (isa == CpuIsa::avx2) return cpu::kAvx2Kernels;
#endif
#ifdef KVIK_HAVE_SPINE_AVX512
  if (isa == CpuIsa::avx512) return cpu::kAvx512Kernels;
#endif
  return cpu::kScalarKernels;
}

class Unpack : public testing::TestWithParam<CpuIsa> {};

TEST_P(Unpack, GivesTheDecodedRowsOfEveryCodeAndHeadDim) {
  for (const KvCode code : all_packed_codes()) expect_decoded(kernels_for(GetParam()), code);
}

INSTANTIATE_TEST_SUITE_P(Isas, Unpack, testing::ValuesIn(available_cpu_isas(detect_cpu_features())),
                         [](const auto& test) { return std::string(cpu_isa_name(test.param)); });

}  // namespace
}  // namespace kvik::test
