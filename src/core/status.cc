#include "kvik/core/status.h"

#include <cstdio>
#include <cstdlib>

namespace kvik {

std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid_argument:
      return "invalid_argument";
    case StatusCode::out_of_pages:
      return "out_of_pages";
    case StatusCode::out_of_memory:
      return "out_of_memory";
    case StatusCode::unsupported:
      return "unsupported";
    case StatusCode::corrupt:
      return "corrupt";
    case StatusCode::io_error:
      return "io_error";
    case StatusCode::cancelled:
      return "cancelled";
  }
  return "unknown";
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(status_code_name(code_)) + ": " + message_;
}

namespace internal {

void check_failed(const char* file, int line, const char* condition, const char* message) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace internal
}  // namespace kvik
