// What follows "is".
#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/methods.h"
#include "model/jinja/numbers.h"
#include "model/jinja/strings.h"

namespace kvik::jinja {
namespace {

template <CompareOp kOp>
Value compare_test(const Call& call) {
  const auto args = call.bind({"other"}, 1);
  return Value(call.evaluator.compare(kOp, call.object, *args[0], call.offset));
}

// Tests of one value.
template <bool (*kHolds)(const Value&)>
Value plain_test(const Call& call) {
  call.bind({});
  return Value(kHolds(call.object));
}

bool is_indexed(const Value& value) {
  if (value.list() == nullptr) return value.text() != nullptr || value.dict() != nullptr;
  const List::Kind kind = value.list()->kind;
  return kind == List::Kind::list || kind == List::Kind::tuple || kind == List::Kind::range;
}

Value modulo_test(const Call& call, const Value& divisor, int64_t rest) {
  const Value result = call.evaluator.binary(BinaryOp::modulo, call.object, divisor, call.offset);
  return Value(call.evaluator.compare(CompareOp::eq, result, Value(rest), call.offset));
}

Value same_as(const Call& call) {
  const Value other = *call.bind({"other"}, 1)[0];
  const Value& object = call.object;
  if (object.is_none() || object.boolean() != nullptr) {
    return Value((object.is_none() && other.is_none()) ||
                 (object.boolean() != nullptr && other.boolean() != nullptr &&
                  *object.boolean() == *other.boolean()));
  }
  // Whether Python makes one object of equal numbers or strings is its own affair.
  if (object.integer() != nullptr && other.integer() != nullptr) {
    return Value(*object.integer() == *other.integer());
  }
  if (object.text() != nullptr && other.text() != nullptr) {
    return Value(object.text()->bytes() == other.text()->bytes());
  }
  if (object.real() != nullptr || object.is_undefined()) {
    refuse("the test \"sameas\" of " + std::string(object.kind()) + " is not supported",
           call.offset);
  }
  return Value(object.same_object(other));
}

Value case_test(const Call& call, CharKind kind) {
  call.bind({});
  return Value(all_of_kind(call.evaluator.text(call.object, call.offset).bytes(), kind));
}

constexpr NamedBuiltin kTests[] = {
    {"!=", compare_test<CompareOp::ne>},
    {"<", compare_test<CompareOp::lt>},
    {"<=", compare_test<CompareOp::le>},
    {"==", compare_test<CompareOp::eq>},
    {">", compare_test<CompareOp::gt>},
    {">=", compare_test<CompareOp::ge>},
    {"boolean", plain_test<[](const Value& v) { return v.boolean() != nullptr; }>},
    {"callable", plain_test<[](const Value& v) {
       return v.loop() != nullptr ||
              (v.callable() != nullptr && v.callable()->kind != Callable::Kind::cycler) ||
              v.is_undefined();
     }>},
    {"defined", plain_test<[](const Value& v) { return !v.is_undefined(); }>},
    {"divisibleby",
     [](const Call& call) { return modulo_test(call, *call.bind({"num"}, 1)[0], 0); }},
    {"eq", compare_test<CompareOp::eq>},
    {"equalto", compare_test<CompareOp::eq>},
    {"escaped",
     plain_test<[](const Value& v) { return v.text() != nullptr && v.text()->markup(); }>},
    {"even",
     [](const Call& call) {
       call.bind({});
       return modulo_test(call, Value(int64_t{2}), 0);
     }},
    {"false", plain_test<[](const Value& v) { return v.boolean() != nullptr && !*v.boolean(); }>},
    {"filter",
     [](const Call& call) {
       call.bind({});
       return Value(find_filter(to_string_arg(call, call.object, "name").bytes()) != nullptr);
     }},
    {"float", plain_test<[](const Value& v) { return v.real() != nullptr; }>},
    {"ge", compare_test<CompareOp::ge>},
    {"greaterthan", compare_test<CompareOp::gt>},
    {"gt", compare_test<CompareOp::gt>},
    {"in", compare_test<CompareOp::in>},
    {"integer", plain_test<[](const Value& v) { return v.integer() != nullptr; }>},
    {"iterable", plain_test<[](const Value& v) {
       return v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr ||
              v.is_undefined() || v.loop() != nullptr;
     }>},
    {"le", compare_test<CompareOp::le>},
    {"lessthan", compare_test<CompareOp::lt>},
    {"lower", [](const Call& call) { return case_test(call, CharKind::lower); }},
    {"lt", compare_test<CompareOp::lt>},
    {"mapping", plain_test<[](const Value& v) { return v.dict() != nullptr; }>},
    {"ne", compare_test<CompareOp::ne>},
    {"none", plain_test<[](const Value& v) { return v.is_none(); }>},
    {"number", plain_test<[](const Value& v) { return as_double(v).has_value(); }>},
    {"odd",
     [](const Call& call) {
       call.bind({});
       return modulo_test(call, Value(int64_t{2}), 1);
     }},
    {"sameas", same_as},
    {"sequence", plain_test<[](const Value& v) { return is_indexed(v) || v.is_undefined(); }>},
    {"string", plain_test<[](const Value& v) { return v.text() != nullptr; }>},
    {"test",
     [](const Call& call) {
       call.bind({});
       return Value(find_test(to_string_arg(call, call.object, "name").bytes()) != nullptr);
     }},
    {"true", plain_test<[](const Value& v) { return v.boolean() != nullptr && *v.boolean(); }>},
    {"undefined", plain_test<[](const Value& v) { return v.is_undefined(); }>},
    {"upper", [](const Call& call) { return case_test(call, CharKind::upper); }},
};

}  // namespace

Builtin find_test(std::string_view name) { return find_builtin(kTests, name); }

}  // namespace kvik::jinja
