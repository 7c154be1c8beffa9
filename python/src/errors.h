// How a Status becomes a Python exception.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "kvik/core/status.h"

namespace kvik::python {

// Each is the C++ side of the exception of the same name in Python. OutOfPagesError and the other
// two derive from Error, which Python sees as a RuntimeError.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct OutOfPagesError : Error {
  using Error::Error;
};
struct UnsupportedError : Error {
  using Error::Error;
};
struct CorruptError : Error {
  using Error::Error;
};

// Throws what becomes ValueError (invalid_argument), MemoryError (out_of_memory) or one of the
// above, with the message of the status. Requires: not ok; the GIL is held.
[[noreturn]] void raise(const Status& status);

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

template <class T>
T take(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}

void add_errors(nanobind::module_& module);

}  // namespace kvik::python
