// Methods of everything but strings, and which methods there are.
#include <algorithm>
#include <bit>
#include <cmath>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/methods.h"
#include "model/jinja/numbers.h"

namespace kvik::jinja {
namespace {

// The sandbox hides what would change a list or mapping.
constexpr std::string_view kUnsafeOfLists[] = {"append", "clear",  "extend",  "insert",
                                               "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kUnsafeOfDicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kOfDicts[] = {"get", "items", "keys", "values", "copy"};
constexpr std::string_view kOfLists[] = {"count", "index"};
constexpr std::string_view kUnknownOfTexts[] = {
    "casefold", "encode", "format_map", "isidentifier", "isprintable", "maketrans", "translate"};

constexpr std::string_view kOfIntegers[] = {"as_integer_ratio", "bit_count", "bit_length",
                                            "conjugate"};
constexpr std::string_view kUnknownOfIntegers[] = {"from_bytes", "to_bytes"};
constexpr std::string_view kOfFloats[] = {"conjugate", "is_integer"};
constexpr std::string_view kUnknownOfFloats[] = {"as_integer_ratio", "fromhex", "hex"};
constexpr std::string_view kUnknownOfMarkup[] = {"escape", "striptags", "unescape"};
constexpr std::string_view kUnknownOfGenerators[] = {"close", "send", "throw"};
constexpr std::string_view kUnknownOfViews[] = {"isdisjoint", "mapping"};

template <size_t N>
bool among(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value view_of(const Call& call, List::Kind kind) {
  call.bind({});
  const Dict& dict = *call.object.dict();
  dict.note_whole();
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) {
    if (kind == List::Kind::items) {
      items.push_back(call.evaluator.make_list({key, value}, List::Kind::tuple, call.offset));
    } else {
      items.push_back(kind == List::Kind::keys ? key : value);
    }
  }
  return call.evaluator.make_list(std::move(items), kind, call.offset);
}

Value loop_method(const Call& call) {
  Loop& loop = *call.object.loop();
  if (!call.args.named.empty()) call.wrong("takes no named arguments");
  std::vector<Value>& values = call.args.plain;
  if (call.name == "cycle") {
    if (values.empty()) call.wrong("needs an argument");
    return values[loop.index0 % values.size()];
  }
  const auto pay = [&](size_t cost) { call.pay(cost); };
  const bool same = loop.changed_called && loop.changed.size() == values.size() &&
                    std::equal(values.begin(), values.end(), loop.changed.begin(),
                               [&](const Value& a, const Value& b) { return equal(a, b, pay); });
  if (same) return Value(false);
  for (const Value& value : values) call.evaluator.stored(value, call.offset);
  loop.changed_called = true;
  loop.changed = std::move(values);
  return Value(true);
}

Value number_method(const Call& call) {
  call.bind({});
  const std::optional<int64_t> integer = as_integer(call.object);
  if (!integer) {
    const double real = *call.object.real();
    if (call.name == "conjugate") return call.object;
    return Value(std::isfinite(real) && real == std::floor(real));
  }
  const uint64_t size = *integer < 0 ? -static_cast<uint64_t>(*integer)  // of the largest one too
                                     : static_cast<uint64_t>(*integer);
  if (call.name == "bit_length") return Value(static_cast<int64_t>(std::bit_width(size)));
  if (call.name == "bit_count") return Value(int64_t{std::popcount(size)});
  if (call.name == "conjugate") return Value(*integer);
  return call.evaluator.make_list({Value(*integer), Value(int64_t{1})}, List::Kind::tuple,
                                  call.offset);
}

Value cycler_method(const Call& call) {
  Callable& cycler = *call.object.callable();
  call.bind({});
  if (call.name == "reset") {
    cycler.position = 0;
    return Value(None{});
  }
  Value current = cycler.values[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.values.size();
  return current;
}

}  // namespace

MethodKind method_kind(const Value& object, std::string_view name) {
  if (object.text() != nullptr) {
    if (find_text_method(name) != nullptr) return MethodKind::allowed;
    const bool unknown =
        among(kUnknownOfTexts, name) || (object.text()->markup() && among(kUnknownOfMarkup, name));
    return unknown ? MethodKind::unknown : MethodKind::none;
  }
  if (object.dict() != nullptr) {
    if (among(kOfDicts, name)) return MethodKind::allowed;
    if (among(kUnsafeOfDicts, name)) return MethodKind::unsafe;
    return name == "fromkeys" ? MethodKind::unknown : MethodKind::none;
  }
  if (const List* list = object.list()) {
    const bool indexed = list->kind == List::Kind::list || list->kind == List::Kind::tuple ||
                         list->kind == List::Kind::range;
    if (indexed && among(kOfLists, name)) return MethodKind::allowed;
    if (list->kind == List::Kind::list && name == "copy") return MethodKind::allowed;
    if (list->kind == List::Kind::list && among(kUnsafeOfLists, name)) return MethodKind::unsafe;
    if (list->kind == List::Kind::range && (name == "start" || name == "stop" || name == "step")) {
      return MethodKind::unknown;
    }
    const bool generator = list->kind == List::Kind::generator;
    const bool unknown =
        generator ? among(kUnknownOfGenerators, name) : !indexed && among(kUnknownOfViews, name);
    return unknown ? MethodKind::unknown : MethodKind::none;
  }
  if (as_integer(object)) {
    if (among(kOfIntegers, name)) return MethodKind::allowed;
    return among(kUnknownOfIntegers, name) ? MethodKind::unknown : MethodKind::none;
  }
  if (object.real() != nullptr) {
    if (among(kOfFloats, name)) return MethodKind::allowed;
    return among(kUnknownOfFloats, name) ? MethodKind::unknown : MethodKind::none;
  }
  return MethodKind::none;
}

Value call_dict_method(const Call& call) {
  const Dict& dict = *call.object.dict();
  call.budget.pay_values(dict.items.size(), call.offset);
  if (call.name == "items") return view_of(call, List::Kind::items);
  if (call.name == "keys") return view_of(call, List::Kind::keys);
  if (call.name == "values") return view_of(call, List::Kind::values);
  if (call.name == "copy") {
    call.bind({});
    return call.object;
  }
  if (!call.args.named.empty()) call.wrong("takes no named arguments");
  const auto args = call.bind({"key", "default"}, 1);
  const Value found = [&] {
    if (args[0]->text() != nullptr) {
      const Value* value = dict.find(args[0]->text()->bytes());
      return value != nullptr ? *value : Value(Undefined{"missing"});
    }
    const auto pay = [&](size_t cost) { call.pay(cost); };
    for (const auto& [key, value] : dict.items) {
      if (equal(key, *args[0], pay)) return value;
    }
    return Value(Undefined{"missing"});
  }();
  if (!found.is_undefined()) return found;
  return args[1] ? *args[1] : Value(None{});
}

Value call_list_method(const Call& call) {
  if (call.object.loop() != nullptr) return loop_method(call);
  if (call.object.callable() != nullptr) return cycler_method(call);
  if (as_double(call.object)) return number_method(call);
  const std::vector<Value>& items = call.object.list()->items;
  if (call.name == "copy") {
    call.bind({});
    return call.object;
  }
  if (!call.args.named.empty()) call.wrong("takes no named arguments");
  const auto pay = [&](size_t cost) { call.pay(cost); };
  const auto args = call.bind({"value", "start", "stop"}, 1);
  if (call.name == "count") {
    if (args[1]) call.wrong("with more than one argument");
    return Value(
        static_cast<int64_t>(std::count_if(items.begin(), items.end(), [&](const Value& item) {
          return equal(item, *args[0], pay);
        })));
  }
  const auto length = static_cast<int64_t>(items.size());
  const auto bound = [&](const std::optional<Value>& value, int64_t absent) {
    const int64_t i = integer_or(call, value, "start or stop", absent);
    return std::clamp<int64_t>(i < 0 ? i + length : i, 0, length);
  };
  for (int64_t i = bound(args[1], 0); i < bound(args[2], length); ++i) {
    if (equal(items[static_cast<size_t>(i)], *args[0], pay)) return Value(i);
  }
  call.wrong("finds nothing");
}

}  // namespace kvik::jinja
