// The kernels for AVX-512 (F, BW, DQ, VL): 16 lanes as one register.
#ifdef KVIK_HAVE_SPINE_AVX512
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "backend/cpu/attend_task.h"
#include "core/isa_region.h"
#include "format/hadamard.h"
#include "format/level_tables.h"
#include "format/lloyd_max.h"
#include "format/packed_tile.h"
#include "kvik/core/dtype.h"

KVIK_ISA_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#include "backend/cpu/spine_avx512.inl.h"
KVIK_ISA_END
#endif  // KVIK_HAVE_SPINE_AVX512
