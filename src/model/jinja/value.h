// Values of the template language.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "model/jinja/text.h"

namespace kvik::jinja {

class Value;

struct Undefined {
  std::string name;  // for messages
};
struct None {};
struct List;
struct Dict;
struct Namespace;
struct Loop;

// Cheap to copy: everything long is shared. Strings, lists and mappings never change; a namespace
// does. Lists, mappings and namespaces hold plain data only (no namespace, no loop), so nothing
// refers to itself.
class Value {
 public:
  using Storage = std::variant<Undefined, None, bool, int64_t, std::shared_ptr<const Text>,
                               std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                               std::shared_ptr<Namespace>, std::shared_ptr<const Loop>>;

  Value() : storage_(Undefined{}) {}
  explicit Value(Undefined undefined) : storage_(std::move(undefined)) {}
  explicit Value(None none) : storage_(none) {}
  explicit Value(bool boolean) : storage_(boolean) {}
  explicit Value(int64_t integer) : storage_(integer) {}
  explicit Value(Text text) : storage_(std::make_shared<const Text>(std::move(text))) {}
  explicit Value(List list);
  explicit Value(Dict dict);
  explicit Value(std::shared_ptr<Namespace> ns) : storage_(std::move(ns)) {}
  explicit Value(std::shared_ptr<const Loop> loop) : storage_(std::move(loop)) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(storage_); }
  bool is_none() const { return std::holds_alternative<None>(storage_); }
  bool is_plain_data() const { return ns() == nullptr && loop() == nullptr; }

  // nullptr if the value is of another kind.
  const bool* boolean() const { return std::get_if<bool>(&storage_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&storage_); }
  const Text* text() const { return get<const Text>(); }
  const List* list() const { return get<const List>(); }
  const Dict* dict() const { return get<const Dict>(); }
  Namespace* ns() const { return get<Namespace>(); }
  const Loop* loop() const { return get<const Loop>(); }
  const std::string& undefined_name() const { return std::get<Undefined>(storage_).name; }

  // "a string", "undefined", ... for messages.
  std::string_view kind() const;
  // As in Python: false, none, undefined, 0 and what is empty are false.
  bool truthy() const;
  // Nesting of lists and mappings; 0 for everything else.
  int depth() const;

 private:
  template <class T>
  T* get() const {
    const auto* pointer = std::get_if<std::shared_ptr<T>>(&storage_);
    return pointer == nullptr ? nullptr : pointer->get();
  }

  Storage storage_;
};

struct List {
  std::vector<Value> items;
  int depth = 1;
};

// In order of insertion.
struct Dict {
  std::vector<std::pair<Text, Value>> items;
  int depth = 1;
  const Value* find(std::string_view key) const;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

// The variable `loop`.
struct Loop {
  std::shared_ptr<const std::vector<Value>> items;
  size_t index0;
};

// Equality as in Python (true equals 1). `pay` is called with the cost of each part before it is
// compared, and may throw.
bool equal(const Value& a, const Value& b, const std::function<void(size_t)>& pay);

}  // namespace kvik::jinja
