// A pair of macros around code that is compiled for an instruction set beyond the baseline. The
// rest of the file, and every header included before the region, stays baseline, so that a program
// never runs an instruction that it did not check for. Inside: no lambdas (gcc gives them the
// baseline target) and no includes of standard headers.
#pragma once

#define KVIK_ISA_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define KVIK_ISA_BEGIN(features) \
  KVIK_ISA_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define KVIK_ISA_END KVIK_ISA_PRAGMA(clang attribute pop)
#else
#define KVIK_ISA_BEGIN(features)    \
  KVIK_ISA_PRAGMA(GCC push_options) \
  KVIK_ISA_PRAGMA(GCC target(features))
#define KVIK_ISA_END KVIK_ISA_PRAGMA(GCC pop_options)
#endif
