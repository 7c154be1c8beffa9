// Filters, tests, methods and functions, by name.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/budget.h"
#include "model/jinja/value.h"

namespace kvik::jinja {

class Evaluator;

using Variables = std::vector<std::pair<std::string, Value>>;

struct Args {
  std::vector<Value> plain;
  Variables named;
};

// A call of a filter, test, method or function: everything is evaluated.
struct Call {
  std::string_view what;  // "filter", ... for messages
  const std::string& name;
  const Value& object;  // that the filter, test or method is applied to
  Args& args;
  size_t offset;
  Evaluator& evaluator;
  Budget& budget;

  std::string title() const { return "the " + std::string(what) + " \"" + name + "\""; }
  void pay(size_t work) const { budget.pay(work, offset); }
  [[noreturn]] void wrong(const std::string& why) const;
  // The object is of a kind that Python refuses here.
  [[noreturn]] void wrong_object() const;

  // The arguments in the order of `names`, as Python binds them; absent ones are nullopt.
  std::vector<std::optional<Value>> bind(std::initializer_list<std::string_view> names,
                                         size_t required = 0) const;
};

// Arguments as what they must be; `call` is for the message.
int64_t to_integer(const Call& call, const Value& value, std::string_view argument);
int64_t integer_or(const Call& call, const std::optional<Value>& value, std::string_view argument,
                   int64_t otherwise);
const Text& to_string_arg(const Call& call, const Value& value, std::string_view argument);
bool truthy_or(const std::optional<Value>& value, bool otherwise);
bool is_absent(const std::optional<Value>& value);  // nullopt or None

using Builtin = Value (*)(const Call& call);
// nullptr if there is none of that name.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);
// A function that templates can call without anything before it.
Builtin find_function(std::string_view name);

// Whether a value of this kind has such a method, and whether templates may call it.
enum class MethodKind : uint8_t { none, allowed, unsafe, unknown };
MethodKind method_kind(const Value& object, std::string_view name);
Value call_text_method(const Call& call);
Value call_dict_method(const Call& call);
Value call_list_method(const Call& call);

// text % values, and text.format(...).
Text format_percent(const Text& text, const Value& values, size_t offset, Budget& budget);
Value format_braces(const Call& call);

// As str() and repr() of Python give it.
Text to_text(const Value& value, size_t offset, Budget& budget);
Text to_repr(const Value& value, size_t offset, Budget& budget);
// The characters, items or keys that a loop goes over; a generator is used up.
std::vector<Value> to_items(const Value& value, size_t offset, Budget& budget);

// json.dumps of Python.
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;  // of one level
  std::optional<Text> item_separator, key_separator;
};
Text to_json(const Value& value, const JsonStyle& style, size_t offset, Budget& budget);

}  // namespace kvik::jinja
