// Filters, tests and methods.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/budget.h"
#include "model/jinja/value.h"

namespace kvik::jinja {

// A call of a filter or method: value and arguments are evaluated.
struct Call {
  const Value& object;
  const std::vector<Value>& args;
  const std::string& name;  // for messages
  size_t offset;
  Budget& budget;
};

// All throw TemplateError. Requires: as many arguments as arity() allows.
Value apply_filter(Filter filter, const Call& call);
Value call_method(Method method, const Call& call);
bool apply_test(Test test, const Value& value);

// As str() of Python gives it. Lists and mappings are refused.
Text to_text(const Value& value, size_t offset);
// The characters, items or keys that a loop goes over.
std::vector<Value> to_items(const Value& value, size_t offset, Budget& budget);
// JSON as json.dumps(value, ensure_ascii=False, indent=indent) writes it.
Text to_json(const Value& value, std::optional<int64_t> indent, size_t offset, Budget& budget);

}  // namespace kvik::jinja
