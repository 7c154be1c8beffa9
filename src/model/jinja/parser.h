// Builds the syntax tree of a template.
#pragma once

#include <string_view>

#include "model/jinja/ast.h"

namespace kvik::jinja {

// `source` normalised. Throws TemplateError.
Block parse(std::string_view source);

}  // namespace kvik::jinja
