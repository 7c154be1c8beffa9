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
struct Callable;

// Cheap to copy: everything long is shared. Strings, lists and mappings never change; namespaces,
// loops, cyclers and how far a generator was read do. Lists, mappings and namespaces hold neither a
// namespace nor a loop, and callables refer to scopes that the evaluator owns, so nothing owns
// itself.
class Value {
 public:
  using Storage =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                   std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                   std::shared_ptr<Namespace>, std::shared_ptr<Loop>, std::shared_ptr<Callable>>;

  Value() : storage_(Undefined{}) {}
  explicit Value(Undefined undefined) : storage_(std::move(undefined)) {}
  explicit Value(None none) : storage_(none) {}
  explicit Value(bool boolean) : storage_(boolean) {}
  explicit Value(int64_t integer) : storage_(integer) {}
  explicit Value(double number) : storage_(number) {}
  explicit Value(Text text) : storage_(std::make_shared<const Text>(std::move(text))) {}
  explicit Value(List list);
  explicit Value(Dict dict);
  explicit Value(std::shared_ptr<Namespace> ns) : storage_(std::move(ns)) {}
  explicit Value(std::shared_ptr<Loop> loop) : storage_(std::move(loop)) {}
  explicit Value(std::shared_ptr<Callable> callable) : storage_(std::move(callable)) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(storage_); }
  bool is_none() const { return std::holds_alternative<None>(storage_); }
  bool is_plain_data() const { return ns() == nullptr && loop() == nullptr; }

  // nullptr if the value is of another kind.
  const bool* boolean() const { return std::get_if<bool>(&storage_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&storage_); }
  const double* real() const { return std::get_if<double>(&storage_); }
  const Text* text() const { return get<const Text>(); }
  const List* list() const { return get<const List>(); }
  const Dict* dict() const { return get<const Dict>(); }
  Namespace* ns() const { return get<Namespace>(); }
  Loop* loop() const { return get<Loop>(); }
  Callable* callable() const { return get<Callable>(); }
  const std::string& undefined_name() const { return std::get<Undefined>(storage_).name; }

  // The same object, as `is` of Python sees it where that does not depend on its implementation.
  bool same_object(const Value& other) const { return identity() == other.identity(); }
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
  const void* identity() const;

  Storage storage_;
};

// A sequence of Python. A generator gives each of its items once.
struct List {
  enum class Kind : uint8_t { list, tuple, range, keys, values, items, generator };

  std::vector<Value> items;
  Kind kind = Kind::list;
  bool grouped = false;  // a tuple of groupby: its items are also called grouper and list
  int64_t step = 1;      // of a range
  int depth = 1;
  mutable size_t taken = 0;  // by readers of a generator
  std::string error{};       // of a generator that fails when it is read
};

// Which keys of the messages a rendering looked at.
struct KeyUse {
  std::vector<std::string> keys;
  bool whole = false;
  void add(std::string_view key);
  bool contains(std::string_view key) const;
};

// In order of insertion.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  KeyUse* use = nullptr;  // of a message; outlives the rendering
  const Value* find(std::string_view key) const;
  void note(std::string_view key) const {
    if (use != nullptr) use->add(key);
  }
  void note_whole() const {
    if (use != nullptr) use->whole = true;
  }
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

struct Stmt;
struct Scope;
struct MacroCode;

// The variable `loop`.
struct Loop {
  std::shared_ptr<const std::vector<Value>> items;
  size_t index0 = 0;
  int depth0 = 0;
  const Stmt* recursive = nullptr;  // what loop(...) runs again
  Scope* outside = nullptr;
  bool changed_called = false;
  std::vector<Value> changed;
};

// What can be called.
struct Callable {
  enum class Kind : uint8_t { function, method, macro, cycler, joiner };

  Kind kind = Kind::function;
  std::string name;  // of a function or method
  Value object;      // of a method
  const MacroCode* macro = nullptr;
  Scope* outside = nullptr;   // of a macro
  std::vector<Value> values;  // of a cycler; the separator of a joiner
  size_t position = 0;
};

// Equality as in Python (true equals 1 and 1.0). `pay` is called with the cost of each part before
// it is compared, and may throw.
bool equal(const Value& a, const Value& b, const std::function<void(size_t)>& pay);

}  // namespace kvik::jinja
