// Marks what the shared library exports; everything else stays hidden.
#pragma once

#if __cplusplus < 202002L
#error "Kvik's headers need C++20: compile with -std=c++20 or later"
#endif

#define KVIK_API [[gnu::visibility("default")]]
