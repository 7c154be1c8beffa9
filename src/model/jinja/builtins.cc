#include "model/jinja/builtins.h"

#include <string>
#include <utility>

#include "model/jinja/error.h"
#include "model/jinja/strings.h"

namespace kvik::jinja {
namespace {

// Mostly an error in Jinja too, but not always.
[[noreturn]] void wrong_kind(const Call& call) {
  refuse("\"" + call.name + "\" of " + std::string(call.object.kind()) + " is not supported",
         call.offset);
}

const Text& text_arg(const Call& call, size_t i) {
  const Text* text = call.args[i].text();
  if (text == nullptr) {
    fail("\"" + call.name + "\" needs a string, not " + std::string(call.args[i].kind()),
         call.offset);
  }
  return *text;
}

// The text itself, or what the value prints; undefined prints nothing.
Text object_text(const Call& call) {
  Text text = to_text(call.object, call.offset);
  call.budget.pay_text(text, call.offset);
  return text;
}

Value pairs_of(const Dict& dict, const Call& call) {
  call.budget.pay_values(3 * dict.items.size(), call.offset);
  List pairs;
  for (const auto& [key, value] : dict.items) {
    call.budget.pay_text(key, call.offset);
    pairs.items.emplace_back(List{{Value(key), value}});
  }
  return Value(std::move(pairs));
}

Value stripped(const Call& call, const Text& text, StripSide side) {
  call.budget.pay_text(text, call.offset);
  if (call.args.empty() || call.args[0].is_none()) return Value(strip(text, side));
  const std::string& set = text_arg(call, 0).bytes();
  call.budget.pay(text.size() * (set.size() / 16), call.offset);
  return Value(strip(text, side, set));
}

Value replaced(const Call& call, const Text& text) {
  const Text& from = text_arg(call, 0);
  const Text& to = text_arg(call, 1);
  if (from.empty()) refuse("replacing an empty string is not supported", call.offset);
  // Count first, so that a result too long is never built.
  size_t count = 0;
  for (size_t at = 0; (at = find_bytes(text.bytes(), from.bytes(), at)) != std::string::npos;) {
    ++count;
    at += from.size();
  }
  call.budget.pay_text(text, call.offset);
  call.budget.pay(count * (to.cost() + sizeof(Text::Run)), call.offset);
  return Value(replace(text, from.bytes(), to));
}

Value cased(const Call& call, const Text& text, bool upper) {
  std::optional<Text> result = to_case(text, upper);
  if (!result) {
    refuse("\"" + call.name + "\" of text that is not ASCII is not supported", call.offset);
  }
  return Value(*std::move(result));
}

Value split_text(const Call& call, const Text& text) {
  std::optional<int64_t> max_splits;
  if (call.args.size() == 2) {
    const int64_t* count = call.args[1].integer();
    if (count == nullptr) fail("the second argument of \"split\" is no integer", call.offset);
    if (*count >= 0) max_splits = *count;
  }
  const Text& separator = text_arg(call, 0);
  if (separator.empty()) fail("\"split\" at an empty string", call.offset);
  call.budget.pay_text(text, call.offset);
  size_t parts = 1;
  for (size_t at = 0; (at = find_bytes(text.bytes(), separator.bytes(), at)) != std::string::npos;
       at += separator.size()) {
    ++parts;
  }
  call.budget.pay(parts * (sizeof(Value) + sizeof(Text)), call.offset);
  List list;
  for (Text& part : split(text, separator.bytes(), max_splits)) {
    list.items.emplace_back(std::move(part));
  }
  return Value(std::move(list));
}

Value ends_of(const Call& call, bool first) {
  if (call.object.text() == nullptr && call.object.list() == nullptr &&
      !call.object.is_undefined()) {
    wrong_kind(call);
  }
  const std::vector<Value> items = to_items(call.object, call.offset, call.budget);
  if (items.empty()) return Value(Undefined{call.name + " of something empty"});
  return first ? items.front() : items.back();
}

Value joined(const Call& call) {
  const Text separator = call.args.empty() ? Text() : to_text(call.args[0], call.offset);
  Text result;
  bool first = true;
  for (const Value& item : to_items(call.object, call.offset, call.budget)) {
    const Text text = to_text(item, call.offset);
    call.budget.pay(text.cost() + separator.cost(), call.offset);
    if (!first) result.append(separator);
    result.append(text);
    first = false;
  }
  return Value(std::move(result));
}

// Items that equal the second argument, or those that do not. Requires: the first argument names
// the test of equality (the parser sees to it).
Value selected(const Call& call, bool equal_ones) {
  List kept;
  for (const Value& item : to_items(call.object, call.offset, call.budget)) {
    const auto pay = [&](size_t cost) { call.budget.pay(cost, call.offset); };
    if (equal(item, call.args[1], pay) == equal_ones) kept.items.push_back(item);
  }
  return Value(std::move(kept));
}

Value length_of(const Call& call) {
  const Value& object = call.object;
  size_t length = 0;
  if (object.text() != nullptr) {
    call.budget.pay(object.text()->size(), call.offset);
    length = count_chars(object.text()->bytes());
  } else if (object.list() != nullptr) {
    length = object.list()->items.size();
  } else if (object.dict() != nullptr) {
    length = object.dict()->items.size();
  } else if (!object.is_undefined()) {
    wrong_kind(call);
  }
  return Value(static_cast<int64_t>(length));
}

Value default_of(const Call& call) {
  const bool also_false = call.args.size() == 2 && call.args[1].truthy();
  if (!call.object.is_undefined() && (!also_false || call.object.truthy())) return call.object;
  return call.args.empty() ? Value(Text()) : call.args[0];
}

Value dict_method(Method method, const Call& call) {
  const Dict& dict = *call.object.dict();
  call.budget.pay_values(dict.items.size(), call.offset);
  switch (method) {
    case Method::get: {
      const Value* found = dict.find(text_arg(call, 0).bytes());
      if (found != nullptr) return *found;
      return call.args.size() == 2 ? call.args[1] : Value(None{});
    }
    case Method::items:
      return pairs_of(dict, call);
    case Method::keys:
      return Value(List{to_items(call.object, call.offset, call.budget)});
    case Method::values: {
      List values;
      for (const auto& item : dict.items) values.items.push_back(item.second);
      return Value(std::move(values));
    }
    default:
      wrong_kind(call);
  }
}

Value text_method(Method method, const Call& call) {
  const Text& text = *call.object.text();
  switch (method) {
    case Method::startswith:
      return Value(text.bytes().starts_with(text_arg(call, 0).bytes()));
    case Method::endswith:
      return Value(text.bytes().ends_with(text_arg(call, 0).bytes()));
    case Method::strip:
      return stripped(call, text, StripSide::both);
    case Method::lstrip:
      return stripped(call, text, StripSide::left);
    case Method::rstrip:
      return stripped(call, text, StripSide::right);
    case Method::split:
      return split_text(call, text);
    case Method::replace:
      return replaced(call, text);
    case Method::lower:
    case Method::upper:
      call.budget.pay_text(text, call.offset);
      return cased(call, text, method == Method::upper);
    default:
      wrong_kind(call);
  }
}

}  // namespace

Value apply_filter(Filter filter, const Call& call) {
  switch (filter) {
    case Filter::default_:
      return default_of(call);
    case Filter::first:
      return ends_of(call, true);
    case Filter::last:
      return ends_of(call, false);
    case Filter::items:
      if (call.object.is_undefined()) return Value(List{});
      if (call.object.dict() == nullptr) wrong_kind(call);
      return pairs_of(*call.object.dict(), call);
    case Filter::join:
      return joined(call);
    case Filter::length:
      return length_of(call);
    case Filter::list:
      return Value(List{to_items(call.object, call.offset, call.budget)});
    case Filter::reject:
      return selected(call, false);
    case Filter::select:
      return selected(call, true);
    case Filter::string:
      return Value(object_text(call));
    case Filter::trim:
      return stripped(call, object_text(call), StripSide::both);
    case Filter::replace:
      return replaced(call, object_text(call));
    case Filter::lower:
    case Filter::upper:
      return cased(call, object_text(call), filter == Filter::upper);
    case Filter::tojson:
      break;  // needs its named argument: the evaluator calls to_json()
  }
  KVIK_CHECK(false, "a filter without code");
}

Value call_method(Method method, const Call& call) {
  call.budget.pay_step(call.offset);
  if (call.object.dict() != nullptr) return dict_method(method, call);
  if (call.object.text() != nullptr) return text_method(method, call);
  if (call.object.is_undefined()) {
    fail("\"" + call.object.undefined_name() + "\" is undefined", call.offset);
  }
  wrong_kind(call);
}

bool apply_test(Test test, const Value& value) {
  switch (test) {
    case Test::boolean:
      return value.boolean() != nullptr;
    case Test::defined:
      return !value.is_undefined();
    case Test::undefined:
      return value.is_undefined();
    case Test::false_:
      return value.boolean() != nullptr && !*value.boolean();
    case Test::true_:
      return value.boolean() != nullptr && *value.boolean();
    case Test::integer:
      return value.integer() != nullptr;
    case Test::number:
      return value.integer() != nullptr || value.boolean() != nullptr;
    case Test::mapping:
      return value.dict() != nullptr;
    case Test::none:
      return value.is_none();
    case Test::string:
      return value.text() != nullptr;
    case Test::iterable:  // Jinja's undefined is an empty sequence too
    case Test::sequence:
      return value.text() != nullptr || value.list() != nullptr || value.dict() != nullptr ||
             value.is_undefined();
  }
  KVIK_CHECK(false, "a test without code");
}

Text to_text(const Value& value, size_t offset) {
  if (value.text() != nullptr) return *value.text();
  if (value.is_undefined()) return {};
  if (value.is_none()) return Text("None", true);
  if (const bool* boolean = value.boolean()) return Text(*boolean ? "True" : "False", true);
  if (const int64_t* integer = value.integer()) return Text(std::to_string(*integer), true);
  refuse("printing " + std::string(value.kind()) + " is not supported; use tojson or join", offset);
}

std::vector<Value> to_items(const Value& value, size_t offset, Budget& budget) {
  if (value.is_undefined()) return {};
  if (value.list() != nullptr) {
    budget.pay_values(value.list()->items.size(), offset);
    return value.list()->items;
  }
  std::vector<Value> items;
  if (value.dict() != nullptr) {
    for (const auto& item : value.dict()->items) {
      budget.pay_text(item.first, offset);
      items.emplace_back(item.first);
    }
    return items;
  }
  const Text* text = value.text();
  if (text == nullptr) fail(std::string(value.kind()) + " has no items", offset);
  budget.pay(text->size() * (sizeof(Value) + sizeof(Text)), offset);
  const std::vector<size_t> offsets = char_offsets(text->bytes());
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    items.emplace_back(text->substr(offsets[i], offsets[i + 1]));
  }
  return items;
}

}  // namespace kvik::jinja
