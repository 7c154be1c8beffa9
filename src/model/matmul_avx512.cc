#if defined(__GNUC__) && !defined(__clang__)
// gcc 12 warns about the deliberately undefined operands inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kvik/core/checked_math.h"
#include "model/blocks_32.h"
#include "model/blocks_k.h"
#include "model/blocks_plain.h"
#include "model/matmul_kernels.h"

#if defined(KVIK_HAVE_SPINE_AVX512)
#include <immintrin.h>

#include "core/isa_region.h"

KVIK_ISA_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
namespace kvik::internal {
namespace {
#include "model/simd_x86.inc"

#include "model/simd_avx512.inc"

#include "model/matmul_body.inc"
}  // namespace
}  // namespace kvik::internal
KVIK_ISA_END

namespace kvik::internal {
const KernelSet* avx512_kernels() { return &kKernels; }
}  // namespace kvik::internal
#else
namespace kvik::internal {
const KernelSet* avx512_kernels() { return nullptr; }
}  // namespace kvik::internal
#endif
