// How calls of filters, tests, methods and functions read their arguments.
#include <algorithm>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/numbers.h"

namespace kvik::jinja {

void Call::wrong(const std::string& why) const { fail(title() + " " + why, offset); }

void Call::wrong_object() const {
  if (object.is_undefined()) fail("\"" + object.undefined_name() + "\" is undefined", offset);
  wrong("of " + std::string(object.kind()));
}

std::vector<std::optional<Value>> Call::bind(std::initializer_list<std::string_view> names,
                                             size_t required) const {
  std::vector<std::optional<Value>> values(names.size());
  if (args.plain.size() > names.size()) {
    wrong("with " + std::to_string(args.plain.size()) + " arguments");
  }
  for (size_t i = 0; i < args.plain.size(); ++i) values[i] = args.plain[i];
  for (const auto& [argument, value] : args.named) {
    const auto* at = std::find(names.begin(), names.end(), argument);
    if (at == names.end()) wrong("has no argument \"" + argument + "\"");
    std::optional<Value>& slot = values[static_cast<size_t>(at - names.begin())];
    if (slot) wrong("is given \"" + argument + "\" twice");
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values[i]) wrong("needs the argument \"" + std::string(names.begin()[i]) + "\"");
  }
  return values;
}

int64_t to_integer(const Call& call, const Value& value, std::string_view argument) {
  const std::optional<int64_t> integer = as_integer(value);
  if (!integer) {
    call.wrong("needs an integer as \"" + std::string(argument) + "\", not " +
               std::string(value.kind()));
  }
  return *integer;
}

int64_t integer_or(const Call& call, const std::optional<Value>& value, std::string_view argument,
                   int64_t otherwise) {
  return value ? to_integer(call, *value, argument) : otherwise;
}

const Text& to_string_arg(const Call& call, const Value& value, std::string_view argument) {
  if (value.text() == nullptr) {
    call.wrong("needs a string as \"" + std::string(argument) + "\", not " +
               std::string(value.kind()));
  }
  return *value.text();
}

bool truthy_or(const std::optional<Value>& value, bool otherwise) {
  return value ? value->truthy() : otherwise;
}

bool is_absent(const std::optional<Value>& value) { return !value || value->is_none(); }

}  // namespace kvik::jinja
