#include "model/jinja/value.h"

#include <algorithm>
#include <optional>

namespace kvik::jinja {
namespace {

using Pay = std::function<void(size_t)>;

std::optional<int64_t> as_integer(const Value& value) {
  if (const bool* boolean = value.boolean()) return *boolean ? 1 : 0;
  if (const int64_t* integer = value.integer()) return *integer;
  return std::nullopt;
}

// Exact, as Python compares integers with floats.
bool equal_numbers(const Value& a, const Value& b) {
  if (a.real() != nullptr && b.real() != nullptr) return *a.real() == *b.real();
  const double real = a.real() != nullptr ? *a.real() : *b.real();
  const int64_t integer = *as_integer(a.real() != nullptr ? b : a);
  return real >= -0x1p63 && real < 0x1p63 && static_cast<int64_t>(real) == integer &&
         static_cast<double>(static_cast<int64_t>(real)) == real;
}

bool is_number(const Value& value) { return as_integer(value) || value.real() != nullptr; }

bool equal_dicts(const Dict& a, const Dict& b, const Pay& pay) {
  a.note_whole();
  b.note_whole();
  if (a.items.size() != b.items.size()) return false;
  pay(a.items.size() * b.items.size());
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const auto other = std::find_if(b.items.begin(), b.items.end(), [&](const auto& candidate) {
      return equal(item.first, candidate.first, pay);
    });
    return other != b.items.end() && equal(item.second, other->second, pay);
  });
}

bool equal_lists(const List& a, const List& b, const Pay& pay) {
  if (a.kind != b.kind || a.kind == List::Kind::generator || a.kind == List::Kind::values) {
    return &a == &b;
  }
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [&pay](const Value& x, const Value& y) { return equal(x, y, pay); });
}

}  // namespace

Value::Value(List list) {
  for (const Value& item : list.items) list.depth = std::max(list.depth, 1 + item.depth());
  storage_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) {
  for (const auto& item : dict.items) dict.depth = std::max(dict.depth, 1 + item.second.depth());
  storage_ = std::make_shared<const Dict>(std::move(dict));
}

std::string_view Value::kind() const {
  static constexpr std::string_view kNames[] = {
      "undefined", "none",      "a boolean",   "an integer", "a float",   "a string",
      "a list",    "a mapping", "a namespace", "a loop",     "a function"};
  static_assert(std::size(kNames) == std::variant_size_v<Storage>);
  if (const List* items = list()) {
    if (items->kind == List::Kind::tuple) return "a tuple";
    if (items->kind == List::Kind::range) return "a range";
    if (items->kind == List::Kind::generator) return "a generator";
    if (items->kind != List::Kind::list) return "a view of a mapping";
  }
  return kNames[storage_.index()];
}

bool Value::truthy() const {
  if (const std::optional<int64_t> number = as_integer(*this)) return *number != 0;
  if (real() != nullptr) return *real() != 0;
  if (text() != nullptr) return !text()->empty();
  if (list() != nullptr) return list()->kind == List::Kind::generator || !list()->items.empty();
  if (dict() != nullptr) return !dict()->items.empty();
  return ns() != nullptr || loop() != nullptr || callable() != nullptr;
}

int Value::depth() const {
  if (list() != nullptr) return list()->depth;
  if (dict() != nullptr) return dict()->depth;
  return callable() != nullptr && callable()->kind != Callable::Kind::macro
             ? std::max(1, callable()->object.depth() + 1)
             : 0;
}

const void* Value::identity() const {
  for (const void* pointer :
       {static_cast<const void*>(text()), static_cast<const void*>(list()),
        static_cast<const void*>(dict()), static_cast<const void*>(ns()),
        static_cast<const void*>(loop()), static_cast<const void*>(callable())}) {
    if (pointer != nullptr) return pointer;
  }
  return this;
}

void KeyUse::add(std::string_view key) {
  if (!contains(key)) keys.emplace_back(key);
}

bool KeyUse::contains(std::string_view key) const {
  return whole || std::find(keys.begin(), keys.end(), key) != keys.end();
}

const Value* Dict::find(std::string_view key) const {
  note(key);
  for (const auto& [name, value] : items) {
    if (name.text() != nullptr && name.text()->bytes() == key) return &value;
  }
  return nullptr;
}

const Value* Namespace::find(std::string_view name) const {
  for (const auto& item : items) {
    if (item.first == name) return &item.second;
  }
  return nullptr;
}

void Namespace::set(std::string_view name, Value value) {
  for (auto& item : items) {
    if (item.first == name) {
      item.second = std::move(value);
      return;
    }
  }
  items.emplace_back(name, std::move(value));
}

bool equal(const Value& a, const Value& b, const Pay& pay) {
  pay(1);
  if (is_number(a) && is_number(b)) {
    const std::optional<int64_t> a_number = as_integer(a), b_number = as_integer(b);
    return a_number && b_number ? a_number == b_number : equal_numbers(a, b);
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    if (a.text()->size() != b.text()->size()) return false;
    pay(a.text()->size());
    return a.text()->bytes() == b.text()->bytes();
  }
  if (a.list() != nullptr && b.list() != nullptr) return equal_lists(*a.list(), *b.list(), pay);
  if (a.dict() != nullptr && b.dict() != nullptr) return equal_dicts(*a.dict(), *b.dict(), pay);
  if (a.ns() != nullptr || b.ns() != nullptr) return a.ns() == b.ns();
  if (a.loop() != nullptr || b.loop() != nullptr) return a.loop() == b.loop();
  if (a.callable() != nullptr || b.callable() != nullptr) return a.callable() == b.callable();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

}  // namespace kvik::jinja
