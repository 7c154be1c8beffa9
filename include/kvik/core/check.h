// Always-on check for bugs of ours or of the caller; for errors that a correct caller can meet, use
// Status.
#pragma once

#include "kvik/core/export.h"

namespace kvik::internal {
// Prints "file:line: condition: message" to standard error and aborts.
[[noreturn]] KVIK_API void check_failed(const char* file, int line, const char* condition,
                                        const char* message);
}  // namespace kvik::internal

#define KVIK_CHECK(condition, message)                                           \
  do {                                                                           \
    if (!(condition)) [[unlikely]]                                               \
      ::kvik::internal::check_failed(__FILE__, __LINE__, #condition, (message)); \
  } while (0)
