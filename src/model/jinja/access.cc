// Evaluator: attributes, subscripts and slices.
#include <algorithm>
#include <memory>
#include <optional>

#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/numbers.h"
#include "model/jinja/strings.h"

namespace kvik::jinja {
namespace {

struct SliceRange {
  int64_t begin, end, step;
};

// Python's rule for the bounds of a slice over `length` items.
SliceRange slice_range(int64_t length, std::optional<int64_t> begin, std::optional<int64_t> end,
                       int64_t step) {
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? length : length - 1;
  const auto bound = [&](std::optional<int64_t> value, int64_t absent) {
    if (!value) return absent;
    const int64_t from_start = *value < 0 ? std::max(*value, -length - 1) + length : *value;
    return std::clamp(from_start, low, high);
  };
  return {bound(begin, step > 0 ? low : high), bound(end, step > 0 ? high : low), step};
}

// Calls `take` with each index of the slice in order.
template <class Take>
void for_each_index(const SliceRange& range, Take take) {
  int64_t i = range.begin;
  while (range.step > 0 ? i < range.end : i > range.end) {
    take(static_cast<size_t>(i));
    if (__builtin_add_overflow(i, range.step, &i)) return;
  }
}

std::optional<size_t> position(int64_t index, size_t size) {
  const auto length = static_cast<int64_t>(size);
  if (index >= length || index < -length) return std::nullopt;
  return static_cast<size_t>(index < 0 ? index + length : index);
}

// Whether Jinja computes it before rendering, where a wrong slice is undefined and not an error.
bool is_constant(const Expr& expr) {
  if (expr.kind == Expr::Kind::name || expr.kind == Expr::Kind::call) return false;
  return std::all_of(expr.args.begin(), expr.args.end(),
                     [](const ExprPtr& arg) { return arg == nullptr || is_constant(*arg); });
}

Value make_method(const Value& object, const std::string& name) {
  auto method = std::make_shared<Callable>();
  method->kind = Callable::Kind::method;
  method->name = name;
  method->object = object;
  return Value(std::move(method));
}

// What is no method of a number.
std::optional<Value> number_attribute(const Value& object, const std::string& name) {
  const std::optional<int64_t> integer = as_integer(object);
  if (name == "real" || (integer && name == "numerator")) {
    return integer ? Value(*integer) : object;
  }
  if (name == "imag") return integer ? Value(int64_t{0}) : Value(0.0);
  if (integer && name == "denominator") return Value(int64_t{1});
  return std::nullopt;
}

// What Python itself has under this name; nullopt if nothing.
std::optional<Value> python_attribute(const Value& object, const std::string& name, size_t offset) {
  switch (method_kind(object, name)) {
    case MethodKind::none:
      break;
    case MethodKind::allowed:
      return make_method(object, name);
    case MethodKind::unsafe:
      return Value(Undefined{name});  // the sandbox hides it
    case MethodKind::unknown:
      refuse(
          "the attribute \"" + name + "\" of " + std::string(object.kind()) + " is not supported",
          offset);
  }
  if (name.starts_with("__")) return Value(Undefined{name});
  if (as_double(object)) return number_attribute(object, name);
  if (const List* list = object.list(); list != nullptr && list->grouped) {
    if (name == "grouper") return list->items[0];
    if (name == "list") return list->items[1];
  }
  return std::nullopt;
}

Value tuple_of(std::vector<Value> items) {
  return Value(List{.items = std::move(items), .kind = List::Kind::tuple});
}

Value macro_attribute(const Callable& callable, const std::string& name) {
  const MacroCode& macro = *callable.macro;
  const auto is_param = [&macro](const char* param) {
    return std::find(macro.params.begin(), macro.params.end(), param) != macro.params.end();
  };
  if (name == "name") {
    // The body of a call block has none.
    return macro.is_caller ? Value(None{}) : Value(Text(macro.name, true));
  }
  if (name == "arguments") {
    std::vector<Value> params;
    for (const std::string& param : macro.params) params.emplace_back(Text(param, true));
    return tuple_of(std::move(params));
  }
  if (name == "catch_kwargs") return Value(macro.uses_kwargs && !is_param("kwargs"));
  if (name == "catch_varargs") return Value(macro.uses_varargs && !is_param("varargs"));
  if (name == "caller") return Value(macro.uses_caller);
  if (name == "explicit_caller") return Value(is_param("caller"));
  return Value(Undefined{name});
}

Value callable_attribute(const Callable& callable, const std::string& name, size_t offset) {
  switch (callable.kind) {
    case Callable::Kind::macro:
      return macro_attribute(callable, name);
    case Callable::Kind::cycler:
      if (name == "current") return callable.values[callable.position];
      if (name == "pos") return Value(static_cast<int64_t>(callable.position));
      if (name == "items") return tuple_of(callable.values);
      break;
    case Callable::Kind::joiner:
      if (name == "sep") return callable.values[0];
      if (name == "used") return Value(callable.position > 0);
      break;
    case Callable::Kind::function:
      // Python's classes have methods, and its dict takes any subscript.
      if ((callable.name == "dict" && !name.starts_with("_")) ||
          (callable.name == "cycler" && (name == "next" || name == "reset" || name == "current"))) {
        refuse("the attribute \"" + name + "\" of the function \"" + callable.name +
                   "\" is not supported",
               offset);
      }
      break;
    case Callable::Kind::method:
      break;
  }
  return Value(Undefined{name});
}

}  // namespace

Value Evaluator::loop_attribute(const Value& object, const std::string& name) {
  const Loop& loop = *object.loop();
  const std::vector<Value>& items = *loop.items;
  const auto index0 = static_cast<int64_t>(loop.index0);
  const auto length = static_cast<int64_t>(items.size());
  if (name == "index0") return Value(index0);
  if (name == "index") return Value(index0 + 1);
  if (name == "revindex0") return Value(length - index0 - 1);
  if (name == "revindex") return Value(length - index0);
  if (name == "length") return Value(length);
  if (name == "first") return Value(index0 == 0);
  if (name == "last") return Value(index0 + 1 == length);
  if (name == "depth") return Value(static_cast<int64_t>(loop.depth0) + 1);
  if (name == "depth0") return Value(static_cast<int64_t>(loop.depth0));
  if (name == "previtem") {
    return loop.index0 == 0 ? Value(Undefined{"loop.previtem"}) : items[loop.index0 - 1];
  }
  if (name == "nextitem") {
    return index0 + 1 == length ? Value(Undefined{"loop.nextitem"}) : items[loop.index0 + 1];
  }
  if (name == "cycle" || name == "changed") return make_method(object, name);
  return Value(Undefined{name});
}

Value Evaluator::attribute(const Value& object, const std::string& name, size_t offset) {
  if (object.is_undefined()) fail("\"" + object.undefined_name() + "\" is undefined", offset);
  if (object.loop() != nullptr) return loop_attribute(object, name);
  if (object.ns() != nullptr) {
    const Value* found = object.ns()->find(name);
    return found != nullptr ? *found : Value(Undefined{name});
  }
  if (const Callable* callable = object.callable()) {
    if (callable->kind == Callable::Kind::cycler && (name == "next" || name == "reset")) {
      return make_method(object, name);
    }
    budget_.pay_step(offset);
    return callable_attribute(*callable, name, offset);
  }
  // In Jinja a method comes before a key of the same name.
  if (std::optional<Value> found = python_attribute(object, name, offset)) {
    return *std::move(found);
  }
  if (object.dict() != nullptr) {
    budget_.pay_values(object.dict()->items.size(), offset);
    if (const Value* found = object.dict()->find(name)) return *found;
  }
  return Value(Undefined{name});
}

Value Evaluator::item(const Value& object, const Value& key, size_t offset) {
  if (object.is_undefined()) fail("\"" + object.undefined_name() + "\" is undefined", offset);
  const Text* name = key.text();
  if (const Dict* dict = object.dict()) {
    budget_.pay_values(dict->items.size(), offset);
    const auto pay = [&](size_t cost) { budget_.pay(cost, offset); };
    if (name != nullptr) {
      if (const Value* found = dict->find(name->bytes())) return *found;
    } else {
      for (const auto& entry : dict->items) {
        if (equal(entry.first, key, pay)) return entry.second;
      }
    }
  }
  if (name != nullptr) {
    // Python's attributes come next.
    if (object.dict() == nullptr) return attribute(object, name->bytes(), offset);
    std::optional<Value> found = python_attribute(object, name->bytes(), offset);
    return found ? *std::move(found) : Value(Undefined{name->bytes()});
  }
  const std::optional<int64_t> index = as_integer(key);
  if (!index) return Value(Undefined{"an item"});
  const Value missing(Undefined{"item " + std::to_string(*index)});
  if (const List* list = object.list()) {
    const bool indexed = list->kind == List::Kind::list || list->kind == List::Kind::tuple ||
                         list->kind == List::Kind::range;
    const std::optional<size_t> at = position(*index, list->items.size());
    return at && indexed ? list->items[*at] : missing;
  }
  if (const Text* text = object.text()) {
    budget_.pay(sizeof(size_t) * text->size(), offset);
    const std::vector<size_t> offsets = char_offsets(text->bytes());
    const std::optional<size_t> at = position(*index, offsets.size() - 1);
    return at ? Value(text->substr(offsets[*at], offsets[*at + 1])) : missing;
  }
  return missing;
}

Value Evaluator::eval_slice(const Expr& expr) {
  const Value object = eval(*expr.args[0]);
  bool wrong = false;
  const auto part = [&](size_t i) -> std::optional<int64_t> {
    if (expr.args[i] == nullptr) return std::nullopt;
    const Value value = eval(*expr.args[i]);
    if (value.is_none()) return std::nullopt;
    const std::optional<int64_t> integer = as_integer(value);
    wrong |= !integer;
    return integer;
  };
  const std::optional<int64_t> begin = part(1), end = part(2), step_part = part(3);
  if (object.is_undefined()) {
    fail("\"" + object.undefined_name() + "\" is undefined", expr.offset);
  }
  if (wrong && is_constant(expr)) return Value(Undefined{"a slice"});
  if (wrong) fail("a slice with a bound that is no integer", expr.offset);
  const int64_t step = step_part.value_or(1);
  const List* list = object.list();
  const Text* text = object.text();
  const bool cuts = text != nullptr || (list != nullptr && (list->kind == List::Kind::list ||
                                                            list->kind == List::Kind::tuple ||
                                                            list->kind == List::Kind::range));
  if (!cuts && is_constant(expr)) return Value(Undefined{"a slice"});
  if (!cuts) fail("a slice of " + std::string(object.kind()), expr.offset);
  if (step == 0) fail("a slice with step 0", expr.offset);
  if (list != nullptr) {
    std::vector<Value> items;
    for_each_index(slice_range(static_cast<int64_t>(list->items.size()), begin, end, step),
                   [&](size_t i) { items.push_back(list->items[i]); });
    budget_.pay_values(list->items.size(), expr.offset);
    List result{.items = std::move(items), .kind = list->kind};
    __builtin_mul_overflow(list->step, step, &result.step);
    return Value(std::move(result));
  }
  budget_.pay((sizeof(size_t) + sizeof(Text::Run)) * text->size(), expr.offset);
  const std::vector<size_t> offsets = char_offsets(text->bytes());
  Text result;
  for_each_index(slice_range(static_cast<int64_t>(offsets.size()) - 1, begin, end, step),
                 [&](size_t i) { result.append(*text, offsets[i], offsets[i + 1]); });
  return Value(std::move(result).with_markup(text->markup()));
}

}  // namespace kvik::jinja
