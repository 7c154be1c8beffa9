// Filters of sequences and mappings.
#include <algorithm>
#include <numeric>
#include <string>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/methods.h"
#include "model/jinja/numbers.h"
#include "model/jinja/strings.h"

namespace kvik::jinja {
namespace {

Value generator(const Call& call, std::vector<Value> items) {
  return call.evaluator.make_list(std::move(items), List::Kind::generator, call.offset);
}

std::vector<Value> items_of(const Call& call) {
  return call.evaluator.items(call.object, call.offset);
}

// "a.0.b" as the subscripts that lead there.
std::vector<Value> path_of(const Text& text) {
  std::vector<Value> path;
  for (Text& part : split(text, ".", std::nullopt, false)) {
    if (all_of_kind(part.bytes(), CharKind::digit)) {
      const ParsedInteger index = parse_integer(part.bytes(), 10);
      path.emplace_back(index.value.value_or(INT64_MAX));
    } else {
      path.emplace_back(std::move(part));
    }
  }
  return path;
}

std::vector<Value> path_of(const std::optional<Value>& attribute) {
  if (is_absent(attribute)) return {};
  if (attribute->text() != nullptr) return path_of(*attribute->text());
  return {*attribute};
}

Value follow(const Call& call, Value value, const std::vector<Value>& path,
             const Value& otherwise = Value(None{})) {
  for (const Value& key : path) {
    value = call.evaluator.item(value, key, call.offset);
    if (value.is_undefined() && !otherwise.is_none()) value = otherwise;
  }
  return value;
}

Value without_case(const Call& call, const Value& value, bool case_sensitive) {
  if (case_sensitive || value.text() == nullptr) return value;
  call.pay(2 * value.text()->cost());
  return Value(to_case(*value.text(), Case::lower));
}

// A stable sort by keys, in the order that comparing gives. Python asks "<" of single keys at
// once; of lists of keys it passes over the equal ones first, so those need no order.
std::vector<size_t> sorted_order(const Call& call, const std::vector<std::vector<Value>>& keys,
                                 bool reverse, bool single = false) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto pay = [&](size_t cost) { call.pay(cost); };
  const auto less = [&](size_t a, size_t b) {
    for (size_t i = 0; i < keys[a].size(); ++i) {
      if (!single && equal(keys[a][i], keys[b][i], pay)) continue;
      return call.evaluator.compare(CompareOp::lt, keys[a][i], keys[b][i], call.offset);
    }
    return false;
  };
  if (reverse) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return less(b, a); });
  } else {
    std::stable_sort(order.begin(), order.end(), less);
  }
  return order;
}

Value default_filter(const Call& call) {
  const auto args = call.bind({"default_value", "boolean"});
  const bool also_false = truthy_or(args[1], false);
  if (!call.object.is_undefined() && (!also_false || call.object.truthy())) return call.object;
  return args[0] ? *args[0] : Value(Text());
}

Value first_filter(const Call& call) {
  call.bind({});
  if (const List* list = call.object.list();
      list != nullptr && list->kind == List::Kind::generator) {
    if (!list->error.empty()) fail(list->error, call.offset);
    if (list->taken < list->items.size()) return list->items[list->taken++];
    return Value(Undefined{"first of something empty"});
  }
  const std::vector<Value> items = items_of(call);
  return items.empty() ? Value(Undefined{"first of something empty"}) : items.front();
}

Value last_filter(const Call& call) {
  call.bind({});
  const List* list = call.object.list();
  if (list != nullptr && list->kind == List::Kind::generator) call.wrong_object();
  const std::vector<Value> items = items_of(call);
  return items.empty() ? Value(Undefined{"last of something empty"}) : items.back();
}

Value length_filter(const Call& call) {
  call.bind({});
  const Value& object = call.object;
  size_t length = 0;
  if (object.text() != nullptr) {
    call.pay(object.text()->size());
    length = count_chars(object.text()->bytes());
  } else if (object.list() != nullptr && object.list()->kind != List::Kind::generator) {
    length = object.list()->items.size();
  } else if (object.dict() != nullptr) {
    length = object.dict()->items.size();
  } else if (object.loop() != nullptr) {
    length = object.loop()->items->size();
  } else if (!object.is_undefined()) {
    call.wrong_object();
  }
  return Value(static_cast<int64_t>(length));
}

std::vector<Value> pairs_of(const Call& call, const Dict& dict) {
  dict.note_whole();
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.items) {
    pairs.push_back(call.evaluator.make_list({key, value}, List::Kind::tuple, call.offset));
  }
  return pairs;
}

Value items_filter(const Call& call) {
  call.bind({});
  if (call.object.is_undefined()) return generator(call, {});
  if (call.object.dict() == nullptr) {
    List failing{.items = {}, .kind = List::Kind::generator};
    failing.error = call.title() + " of " + std::string(call.object.kind());
    return Value(std::move(failing));
  }
  return generator(call, pairs_of(call, *call.object.dict()));
}

Value dictsort_filter(const Call& call) {
  const auto args = call.bind({"case_sensitive", "by", "reverse"});
  if (call.object.dict() == nullptr) call.wrong_object();
  const std::string by = args[1] ? call.evaluator.text(*args[1], call.offset).bytes() : "key";
  if (by != "key" && by != "value") call.wrong("sorts by \"key\" or \"value\"");
  const std::vector<Value> pairs = pairs_of(call, *call.object.dict());
  std::vector<std::vector<Value>> keys;
  for (const Value& pair : pairs) {
    const Value& key = pair.list()->items[by == "key" ? 0 : 1];
    keys.push_back({without_case(call, key, truthy_or(args[0], false))});
  }
  std::vector<Value> result;
  for (const size_t i : sorted_order(call, keys, truthy_or(args[2], false), true)) {
    result.push_back(pairs[i]);
  }
  return call.evaluator.make_list(std::move(result), List::Kind::list, call.offset);
}

Value join_filter(const Call& call) {
  const auto args = call.bind({"d", "attribute"});
  const Text separator = args[0] ? call.evaluator.text(*args[0], call.offset) : Text();
  const std::vector<Value> path = path_of(args[1]);
  Text result;
  bool first = true;
  for (const Value& item : items_of(call)) {
    const Text text = call.evaluator.text(follow(call, item, path), call.offset);
    call.pay(text.cost() + separator.cost());
    if (!first) result.append(separator);
    result.append(text);
    first = false;
  }
  return Value(std::move(result));
}

Value list_filter(const Call& call) {
  call.bind({});
  return call.evaluator.make_list(items_of(call), List::Kind::list, call.offset);
}

Value reverse_filter(const Call& call) {
  call.bind({});
  std::vector<Value> items = items_of(call);
  std::reverse(items.begin(), items.end());
  if (call.object.text() != nullptr) {
    Text text;
    for (const Value& item : items) text.append(*item.text());
    return Value(std::move(text));
  }
  const bool once =
      call.object.list() != nullptr && call.object.list()->kind == List::Kind::generator;
  return once ? call.evaluator.make_list(std::move(items), List::Kind::list, call.offset)
              : generator(call, std::move(items));
}

Value sort_filter(const Call& call) {
  const auto args = call.bind({"reverse", "case_sensitive", "attribute"});
  std::vector<std::vector<Value>> paths;
  if (!is_absent(args[2]) && args[2]->text() != nullptr) {
    for (const Text& part : split(*args[2]->text(), ",", std::nullopt, false)) {
      paths.push_back(path_of(part));
    }
  } else {
    paths.push_back(path_of(args[2]));
  }
  const std::vector<Value> items = items_of(call);
  std::vector<std::vector<Value>> keys;
  for (const Value& item : items) {
    std::vector<Value> key;
    call.budget.pay_values(paths.size(), call.offset);
    for (const auto& path : paths) {
      key.push_back(without_case(call, follow(call, item, path), truthy_or(args[1], false)));
    }
    keys.push_back(std::move(key));
  }
  std::vector<Value> result;
  for (const size_t i : sorted_order(call, keys, truthy_or(args[0], false))) {
    result.push_back(items[i]);
  }
  return call.evaluator.make_list(std::move(result), List::Kind::list, call.offset);
}

Value unique_filter(const Call& call) {
  const auto args = call.bind({"case_sensitive", "attribute"});
  const std::vector<Value> path = path_of(args[1]);
  const auto pay = [&](size_t cost) { call.pay(cost); };
  std::vector<Value> keys;
  std::vector<Value> result;
  for (const Value& item : items_of(call)) {
    Value key = without_case(call, follow(call, item, path), truthy_or(args[0], false));
    if (key.dict() != nullptr || (key.list() != nullptr && key.list()->kind == List::Kind::list)) {
      call.wrong("of " + std::string(key.kind()) + " as an item");
    }
    const bool seen = std::any_of(keys.begin(), keys.end(),
                                  [&](const Value& other) { return equal(key, other, pay); });
    if (seen) continue;
    keys.push_back(std::move(key));
    result.push_back(item);
  }
  return generator(call, std::move(result));
}

Value extreme_filter(const Call& call, CompareOp better) {
  const auto args = call.bind({"case_sensitive", "attribute"});
  const std::vector<Value> path = path_of(args[1]);
  const std::vector<Value> items = items_of(call);
  if (items.empty()) return Value(Undefined{call.name + " of something empty"});
  size_t best = 0;
  Value best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    Value key = without_case(call, follow(call, items[i], path), truthy_or(args[0], false));
    if (i > 0 && !call.evaluator.compare(better, key, best_key, call.offset)) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Value sum_filter(const Call& call) {
  const auto args = call.bind({"attribute", "start"});
  const std::vector<Value> path = path_of(args[0]);
  Value total = args[1] ? *args[1] : Value(int64_t{0});
  if (total.text() != nullptr) call.wrong("of strings");
  for (const Value& item : items_of(call)) {
    total = call.evaluator.binary(BinaryOp::add, total, follow(call, item, path), call.offset);
  }
  return total;
}

Value batch_filter(const Call& call) {
  const auto args = call.bind({"linecount", "fill_with"}, 1);
  const int64_t count = to_integer(call, *args[0], "linecount");
  const std::vector<Value> items = items_of(call);
  std::vector<Value> result;
  std::vector<Value> line;
  const auto end_line = [&] {
    result.push_back(
        call.evaluator.make_list(std::exchange(line, {}), List::Kind::list, call.offset));
  };
  for (const Value& item : items) {
    if (static_cast<int64_t>(line.size()) == count) end_line();
    line.push_back(item);
  }
  if (!line.empty()) {
    if (!is_absent(args[1]) && static_cast<int64_t>(line.size()) < count) {
      // Paid before anything is made: the number may be any.
      const size_t missing = static_cast<size_t>(count) - line.size();
      call.budget.pay_values(std::min(missing, SIZE_MAX / 4 / sizeof(Value)), call.offset);
      line.insert(line.end(), missing, *args[1]);
    }
    end_line();
  }
  return generator(call, std::move(result));
}

Value slice_filter(const Call& call) {
  const auto args = call.bind({"slices", "fill_with"}, 1);
  const int64_t slices = to_integer(call, *args[0], "slices");
  const std::vector<Value> items = items_of(call);
  if (slices == 0) call.wrong("into no slices");
  // Paid before anything is made: the number may be any.
  constexpr size_t kSliceCost = sizeof(List) + 2 * sizeof(Value);
  const auto count = static_cast<size_t>(std::max<int64_t>(0, slices));
  call.pay(std::min(count, SIZE_MAX / 4 / kSliceCost) * kSliceCost);
  const auto length = static_cast<int64_t>(items.size());
  std::vector<Value> result;
  int64_t at = 0;
  for (int64_t i = 0; i < slices; ++i) {
    const bool larger = i < length % slices;
    const int64_t end = at + length / slices + (larger ? 1 : 0);
    std::vector<Value> part(items.begin() + at, items.begin() + end);
    if (!is_absent(args[1]) && !larger) part.push_back(*args[1]);
    result.push_back(call.evaluator.make_list(std::move(part), List::Kind::list, call.offset));
    at = end;
  }
  return generator(call, std::move(result));
}

Value groupby_filter(const Call& call) {
  const auto args = call.bind({"attribute", "default", "case_sensitive"}, 1);
  const std::vector<Value> path = path_of(args[0]);
  const Value otherwise = args[1] ? *args[1] : Value(None{});
  const bool case_sensitive = truthy_or(args[2], false);
  const std::vector<Value> items = items_of(call);
  std::vector<std::vector<Value>> keys;
  for (const Value& item : items) {
    keys.push_back({without_case(call, follow(call, item, path, otherwise), case_sensitive)});
  }
  const auto pay = [&](size_t cost) { call.pay(cost); };
  std::vector<Value> groups;
  std::vector<Value> group;
  Value grouper;
  const auto end_group = [&] {
    if (group.empty()) return;
    Value list = call.evaluator.make_list(std::exchange(group, {}), List::Kind::list, call.offset);
    groups.emplace_back(List{.items = {call.evaluator.stored(grouper, call.offset),
                                       call.evaluator.stored(std::move(list), call.offset)},
                             .kind = List::Kind::tuple,
                             .grouped = true});
  };
  size_t before = 0;
  for (const size_t i : sorted_order(call, keys, false, true)) {
    if (!group.empty() && !equal(keys[i][0], keys[before][0], pay)) end_group();
    if (group.empty()) grouper = follow(call, items[i], path, otherwise);
    group.push_back(items[i]);
    before = i;
  }
  end_group();
  return call.evaluator.make_list(std::move(groups), List::Kind::list, call.offset);
}

// The first argument that has no name, and the others.
std::string take_name(const Call& call, const char* what) {
  if (call.args.plain.empty()) call.wrong(std::string("needs ") + what);
  const Value name = call.args.plain[0];
  call.args.plain.erase(call.args.plain.begin());
  return to_string_arg(call, name, what).bytes();
}

Value map_filter(const Call& call) {
  std::vector<Value> result;
  Args& args = call.args;
  const bool by_attribute =
      args.plain.empty() && std::any_of(args.named.begin(), args.named.end(),
                                        [](const auto& item) { return item.first == "attribute"; });
  if (by_attribute) {
    const auto named = call.bind({"attribute", "default"});
    const std::vector<Value> path = path_of(named[0]);
    const Value otherwise = named[1] ? *named[1] : Value(None{});
    if (!call.object.truthy()) return generator(call, {});
    for (const Value& item : items_of(call)) result.push_back(follow(call, item, path, otherwise));
    return generator(call, std::move(result));
  }
  const std::string filter = take_name(call, "the name of a filter");
  if (!call.object.truthy()) return generator(call, {});
  for (const Value& item : items_of(call)) {
    call.budget.pay_values(args.plain.size() + args.named.size(), call.offset);
    result.push_back(call.evaluator.apply_filter(filter, item, args, call.offset));
  }
  return generator(call, std::move(result));
}

Value select_filter(const Call& call, bool keep, bool by_attribute) {
  std::vector<Value> path;
  if (by_attribute) {
    if (call.args.plain.empty()) call.wrong("needs the name of an attribute");
    path = path_of(call.args.plain[0]);
    call.args.plain.erase(call.args.plain.begin());
  }
  const bool by_test = !call.args.plain.empty();
  const std::string test = by_test ? take_name(call, "the name of a test") : "";
  if (!call.object.truthy()) return generator(call, {});
  std::vector<Value> result;
  for (const Value& item : items_of(call)) {
    const Value tested = follow(call, item, path);
    call.budget.pay_values(call.args.plain.size(), call.offset);
    const bool holds =
        by_test ? call.evaluator.apply_test(test, tested, call.args, call.offset) : tested.truthy();
    if (holds == keep) result.push_back(item);
  }
  return generator(call, std::move(result));
}

// Python's attribute, never an item.
Value attr_filter(const Call& call) {
  const auto args = call.bind({"name"}, 1);
  const std::string name = call.evaluator.text(*args[0], call.offset).bytes();
  if (call.object.dict() != nullptr && method_kind(call.object, name) == MethodKind::none) {
    return Value(Undefined{name});
  }
  return call.evaluator.attribute(call.object, name, call.offset);
}

constexpr NamedBuiltin kFilters[] = {
    {"attr", attr_filter},
    {"batch", batch_filter},
    {"count", length_filter},
    {"d", default_filter},
    {"default", default_filter},
    {"dictsort", dictsort_filter},
    {"first", first_filter},
    {"groupby", groupby_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"length", length_filter},
    {"list", list_filter},
    {"map", map_filter},
    {"max", [](const Call& call) { return extreme_filter(call, CompareOp::gt); }},
    {"min", [](const Call& call) { return extreme_filter(call, CompareOp::lt); }},
    {"reject", [](const Call& call) { return select_filter(call, false, false); }},
    {"rejectattr", [](const Call& call) { return select_filter(call, false, true); }},
    {"reverse", reverse_filter},
    {"select", [](const Call& call) { return select_filter(call, true, false); }},
    {"selectattr", [](const Call& call) { return select_filter(call, true, true); }},
    {"slice", slice_filter},
    {"sort", sort_filter},
    {"sum", sum_filter},
    {"unique", unique_filter},
};

}  // namespace

Builtin find_list_filter(std::string_view name) { return find_builtin(kFilters, name); }

Builtin find_filter(std::string_view name) {
  const Builtin filter = find_list_filter(name);
  return filter != nullptr ? filter : find_text_filter(name);
}

}  // namespace kvik::jinja
