// KVIK_ISA_BEGIN("avx2,fma") ... KVIK_ISA_END: functions defined between them may use those
// instructions, whatever flags the file is compiled with. Include all headers before a region, and
// write no lambda inside: its call operator would not get the instructions.
#pragma once

#if defined(__clang__)
#define KVIK_ISA_PRAGMA(text) _Pragma(#text)
#define KVIK_ISA_BEGIN(features) \
  KVIK_ISA_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define KVIK_ISA_END _Pragma("clang attribute pop")
#else
#define KVIK_ISA_PRAGMA(text) _Pragma(#text)
#define KVIK_ISA_BEGIN(features) _Pragma("GCC push_options") KVIK_ISA_PRAGMA(GCC target(features))
#define KVIK_ISA_END _Pragma("GCC pop_options")
#endif
