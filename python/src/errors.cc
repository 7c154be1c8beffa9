#include "errors.h"

#include <array>

namespace nb = nanobind;

namespace kvik::python {
namespace {

template <class T>
nb::object add_error(nb::module_& module, const char* name, nb::handle base, const char* doc) {
  nb::exception<T> type(module, name, base);
  type.attr("__doc__") = doc;
  return type;
}

}  // namespace

void raise(const Status& status) {
  const std::string& message = status.message();
  switch (status.code()) {
    case StatusCode::invalid_argument:
      throw nb::value_error(message.c_str());
    case StatusCode::out_of_memory:
      PyErr_SetString(PyExc_MemoryError, message.c_str());
      throw nb::python_error();
    case StatusCode::out_of_pages:
      throw OutOfPagesError(message);
    case StatusCode::unsupported:
      throw UnsupportedError(message);
    case StatusCode::corrupt:
      throw CorruptError(message);
    case StatusCode::ok:
    case StatusCode::io_error:
    case StatusCode::cancelled:
      break;
  }
  throw Error(message);
}

void add_errors(nb::module_& module) {
  // The translator registered last is asked first, so the base comes first.
  const nb::object base = add_error<Error>(module, "Error", PyExc_RuntimeError,
                                           "An error of the library that is no other.");
  add_error<OutOfPagesError>(module, "OutOfPagesError", base,
                             "The cache may hold no more tokens; nothing was changed.");
  add_error<UnsupportedError>(
      module, "UnsupportedError", base,
      "A valid wish that this build, format or state cannot serve; nothing was changed.");
  add_error<CorruptError>(module, "CorruptError", base, "Data that breaks its own format.");
}

}  // namespace kvik::python
