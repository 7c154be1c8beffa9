// The names that the template language knows. Looking one up tells what is supported.
#pragma once

#include <optional>
#include <string_view>

#include "model/jinja/ast.h"

namespace kvik::jinja {

std::optional<Filter> find_filter(std::string_view name);
std::optional<Test> find_test(std::string_view name);
std::optional<Method> find_method(std::string_view name);

// How many arguments after the value itself, and which of them have names.
struct Arity {
  size_t min, max;
};
Arity arity(Filter filter);
Arity arity(Method method);

// True for the methods of Python's str, list and dict, and of functions that only exist in full
// Jinja. Reading them without a call, or calling them, is outside the subset unless find_method
// knows the name.
bool is_python_method(std::string_view name);
// Jinja's own global functions.
bool is_jinja_function(std::string_view name);

}  // namespace kvik::jinja
