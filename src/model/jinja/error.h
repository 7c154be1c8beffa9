// How errors travel inside the template engine. ChatTemplate turns them into a Status: none leaves
// the library.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "kvik/core/status.h"

namespace kvik::jinja {

struct TemplateError {
  StatusCode code;
  std::string message;
  size_t offset;  // in the normalised source
};

// What Jinja may do and this engine does not, or a limit.
[[noreturn]] inline void refuse(std::string message, size_t offset) {
  throw TemplateError{StatusCode::unsupported, std::move(message), offset};
}
// Not Jinja, or an operation that fails in Jinja too.
[[noreturn]] inline void fail(std::string message, size_t offset) {
  throw TemplateError{StatusCode::corrupt, std::move(message), offset};
}

}  // namespace kvik::jinja
