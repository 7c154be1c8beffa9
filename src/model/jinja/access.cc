// Evaluator: attributes, indices and slices.
#include <algorithm>
#include <optional>

#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/names.h"
#include "model/jinja/strings.h"

namespace kvik::jinja {
namespace {

Value loop_attribute(const Loop& loop, const std::string& name, size_t offset) {
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
  if (name == "previtem") {
    return loop.index0 == 0 ? Value(Undefined{"loop.previtem"}) : items[loop.index0 - 1];
  }
  if (name == "nextitem") {
    return index0 + 1 == length ? Value(Undefined{"loop.nextitem"}) : items[loop.index0 + 1];
  }
  refuse("\"loop." + name + "\" is not supported", offset);
}

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

}  // namespace

Value Evaluator::eval_attribute(const Expr& expr) {
  const Value object = eval(*expr.args[0]);
  if (object.is_undefined()) {
    fail("\"" + object.undefined_name() + "\" is undefined", expr.offset);
  }
  if (object.loop() != nullptr) return loop_attribute(*object.loop(), expr.name, expr.offset);
  if (object.ns() != nullptr) {
    const Value* found = object.ns()->find(expr.name);
    return found != nullptr ? *found : Value(Undefined{expr.name});
  }
  // In Jinja a method comes before a key of the same name; methods as values are not supported.
  if (is_python_method(expr.name)) {
    refuse("the attribute \"" + expr.name + "\" is not supported", expr.offset);
  }
  if (object.dict() != nullptr) {
    budget_.pay_values(object.dict()->items.size(), expr.offset);
    if (const Value* found = object.dict()->find(expr.name)) return *found;
  }
  return Value(Undefined{expr.name});
}

Value Evaluator::eval_index(const Expr& expr) {
  const Value object = eval(*expr.args[0]);
  const Value index = eval(*expr.args[1]);
  if (object.is_undefined()) {
    fail("\"" + object.undefined_name() + "\" is undefined", expr.offset);
  }
  if (object.loop() != nullptr || object.ns() != nullptr) {
    refuse("a subscript of " + std::string(object.kind()) + " is not supported", expr.offset);
  }
  if (index.text() != nullptr) {
    const std::string& key = index.text()->bytes();
    if (object.dict() != nullptr) {
      budget_.pay_values(object.dict()->items.size(), expr.offset);
      if (const Value* found = object.dict()->find(key)) return *found;
    }
    // Jinja would look for an attribute next.
    if (is_python_method(key))
      refuse("the attribute \"" + key + "\" is not supported", expr.offset);
    return Value(Undefined{key});
  }
  if (index.integer() == nullptr) {
    refuse("a subscript that is " + std::string(index.kind()) + " is not supported", expr.offset);
  }
  const Value missing(Undefined{"item " + std::to_string(*index.integer())});
  const auto position = [&](size_t size) -> std::optional<size_t> {
    const auto length = static_cast<int64_t>(size);
    const int64_t i = *index.integer();
    if (i >= length || i < -length) return std::nullopt;
    return static_cast<size_t>(i < 0 ? i + length : i);
  };
  if (const List* list = object.list()) {
    const std::optional<size_t> at = position(list->items.size());
    return at ? list->items[*at] : missing;
  }
  if (const Text* text = object.text()) {
    budget_.pay(sizeof(size_t) * text->size(), expr.offset);
    const std::vector<size_t> offsets = char_offsets(text->bytes());
    const std::optional<size_t> at = position(offsets.size() - 1);
    return at ? Value(text->substr(offsets[*at], offsets[*at + 1])) : missing;
  }
  return missing;
}

Value Evaluator::eval_slice(const Expr& expr) {
  const Value object = eval(*expr.args[0]);
  const auto part = [&](size_t i) -> std::optional<int64_t> {
    if (expr.args[i] == nullptr) return std::nullopt;
    const Value value = eval(*expr.args[i]);
    if (value.is_none()) return std::nullopt;
    if (value.integer() == nullptr) {
      refuse("a slice with " + std::string(value.kind()) + " is not supported",
             expr.args[i]->offset);
    }
    return *value.integer();
  };
  const std::optional<int64_t> begin = part(1), end = part(2);
  const int64_t step = part(3).value_or(1);
  if (step == 0) fail("a slice with step 0", expr.offset);

  if (const List* list = object.list()) {
    budget_.pay_values(list->items.size(), expr.offset);
    List result;
    for_each_index(slice_range(static_cast<int64_t>(list->items.size()), begin, end, step),
                   [&](size_t i) { result.items.push_back(list->items[i]); });
    return Value(std::move(result));
  }
  const Text* text = object.text();
  if (text == nullptr)
    refuse("a slice of " + std::string(object.kind()) + " is not supported", expr.offset);
  budget_.pay((sizeof(size_t) + sizeof(Text::Run)) * text->size(), expr.offset);
  const std::vector<size_t> offsets = char_offsets(text->bytes());
  Text result;
  for_each_index(slice_range(static_cast<int64_t>(offsets.size()) - 1, begin, end, step),
                 [&](size_t i) { result.append(*text, offsets[i], offsets[i + 1]); });
  return Value(std::move(result));
}

}  // namespace kvik::jinja
