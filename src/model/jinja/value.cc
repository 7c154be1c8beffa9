#include "model/jinja/value.h"

#include <algorithm>
#include <optional>

namespace kvik::jinja {
namespace {

std::optional<int64_t> as_integer(const Value& value) {
  if (const bool* boolean = value.boolean()) return *boolean ? 1 : 0;
  if (const int64_t* integer = value.integer()) return *integer;
  return std::nullopt;
}

using Pay = std::function<void(size_t)>;

bool equal_dicts(const Dict& a, const Dict& b, const Pay& pay) {
  if (a.items.size() != b.items.size()) return false;
  pay(a.items.size() * b.items.size());
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* other = b.find(item.first.bytes());
    return other != nullptr && equal(item.second, *other, pay);
  });
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
  static constexpr std::string_view kNames[] = {"undefined",  "none",        "a boolean",
                                                "an integer", "a string",    "a list",
                                                "a mapping",  "a namespace", "a loop"};
  static_assert(std::size(kNames) == std::variant_size_v<Storage>);
  return kNames[storage_.index()];
}

bool Value::truthy() const {
  if (const std::optional<int64_t> number = as_integer(*this)) return *number != 0;
  if (text() != nullptr) return !text()->empty();
  if (list() != nullptr) return !list()->items.empty();
  if (dict() != nullptr) return !dict()->items.empty();
  return ns() != nullptr || loop() != nullptr;
}

int Value::depth() const {
  if (list() != nullptr) return list()->depth;
  return dict() != nullptr ? dict()->depth : 0;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name.bytes() == key) return &value;
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
  const std::optional<int64_t> a_number = as_integer(a), b_number = as_integer(b);
  if (a_number || b_number) return a_number == b_number;
  if (a.text() != nullptr && b.text() != nullptr) {
    if (a.text()->size() != b.text()->size()) return false;
    pay(a.text()->size());
    return a.text()->bytes() == b.text()->bytes();
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    const std::vector<Value>& left = a.list()->items;
    const std::vector<Value>& right = b.list()->items;
    return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                      [&pay](const Value& x, const Value& y) { return equal(x, y, pay); });
  }
  if (a.dict() != nullptr && b.dict() != nullptr) return equal_dicts(*a.dict(), *b.dict(), pay);
  if (a.ns() != nullptr || b.ns() != nullptr) return a.ns() == b.ns();
  if (a.loop() != nullptr || b.loop() != nullptr) return a.loop() == b.loop();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

}  // namespace kvik::jinja
