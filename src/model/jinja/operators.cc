// Evaluator: arithmetic, concatenation and comparisons.
#include <algorithm>
#include <optional>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"

namespace kvik::jinja {
namespace {

[[noreturn]] void wrong_kinds(std::string_view op, const Value& left, const Value& right,
                              size_t offset) {
  for (const Value* value : {&left, &right}) {
    if (value->is_undefined()) fail("\"" + value->undefined_name() + "\" is undefined", offset);
  }
  fail("\"" + std::string(op) + "\" between " + std::string(left.kind()) + " and " +
           std::string(right.kind()),
       offset);
}

// true counts as 1, as in Python.
std::optional<int64_t> as_integer(const Value& value) {
  if (const bool* boolean = value.boolean()) return *boolean ? 1 : 0;
  if (const int64_t* integer = value.integer()) return *integer;
  return std::nullopt;
}

// Floor division and its remainder, as in Python. Requires: b != 0 and no overflow.
int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

std::optional<int64_t> arithmetic(BinaryOp op, int64_t a, int64_t b, size_t offset) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case BinaryOp::add:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOp::subtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOp::multiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOp::floor_divide:
    case BinaryOp::modulo:
      if (b == 0) fail("division by zero", offset);
      if (b == -1) {  // the one quotient that overflows
        if (op == BinaryOp::modulo) return 0;
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
      } else {
        const int64_t quotient = floor_divide(a, b);
        result = op == BinaryOp::floor_divide ? quotient : a - quotient * b;
      }
  }
  if (overflow) return std::nullopt;
  return result;
}

std::string_view spelling(BinaryOp op) {
  static constexpr std::string_view kSpellings[] = {"+", "-", "*", "//", "%"};
  return kSpellings[static_cast<size_t>(op)];
}

}  // namespace

Value Evaluator::eval_binary(const Expr& expr) {
  const bool unary = expr.kind != Expr::Kind::binary;
  const Value left = unary ? Value(int64_t{0}) : eval(*expr.args[0]);
  const Value right = eval(*expr.args[unary ? 0 : 1]);
  const BinaryOp op = !unary                           ? expr.binary
                      : expr.kind == Expr::Kind::minus ? BinaryOp::subtract
                                                       : BinaryOp::add;
  const std::optional<int64_t> a = as_integer(left), b = as_integer(right);
  if (a && b) {
    const std::optional<int64_t> result = arithmetic(op, *a, *b, expr.offset);
    if (!result) refuse("an integer beyond 64 bits is not supported", expr.offset);
    return Value(*result);
  }
  if (op == BinaryOp::add) return add(left, right, expr.offset);
  // Python formats and repeats with these.
  const bool repeats = op == BinaryOp::multiply && !left.is_undefined() && !right.is_undefined();
  if (repeats || (op == BinaryOp::modulo && left.text() != nullptr)) {
    refuse("\"" + std::string(spelling(op)) + "\" between " + std::string(left.kind()) + " and " +
               std::string(right.kind()) + " is not supported",
           expr.offset);
  }
  wrong_kinds(spelling(op), left, right, expr.offset);
}

Value Evaluator::add(const Value& left, const Value& right, size_t offset) {
  if (left.text() != nullptr && right.text() != nullptr) {
    budget_.pay_text(*left.text(), offset);
    budget_.pay_text(*right.text(), offset);
    Text text = *left.text();
    text.append(*right.text());
    return Value(std::move(text));
  }
  if (left.list() != nullptr && right.list() != nullptr) {
    budget_.pay_values(left.list()->items.size() + right.list()->items.size(), offset);
    List list{left.list()->items};
    list.items.insert(list.items.end(), right.list()->items.begin(), right.list()->items.end());
    return Value(std::move(list));
  }
  wrong_kinds("+", left, right, offset);
}

Value Evaluator::eval_concat(const Expr& expr) {
  Text result;
  for (const ExprPtr& arg : expr.args) {
    const Text text = to_text(eval(*arg), arg->offset);
    budget_.pay_text(text, expr.offset);
    result.append(text);
  }
  return Value(std::move(result));
}

bool Evaluator::eval_compare(const Expr& expr) {
  Value left = eval(*expr.args[0]);
  for (size_t i = 0; i < expr.compares.size(); ++i) {
    Value right = eval(*expr.args[i + 1]);
    if (!compare(expr.compares[i], left, right, expr.offset)) return false;
    left = std::move(right);
  }
  return true;
}

bool Evaluator::compare(CompareOp op, const Value& left, const Value& right, size_t offset) {
  if (op == CompareOp::in) return contains(right, left, offset);
  if (op == CompareOp::not_in) return !contains(right, left, offset);
  if (op == CompareOp::eq || op == CompareOp::ne) {
    return equal(left, right, [&](size_t cost) { budget_.pay(cost, offset); }) ==
           (op == CompareOp::eq);
  }
  int order = 0;
  const std::optional<int64_t> a = as_integer(left), b = as_integer(right);
  if (a && b) {
    order = *a < *b ? -1 : *a > *b ? 1 : 0;
  } else if (left.text() != nullptr && right.text() != nullptr) {
    // The order of UTF-8 bytes is that of code points.
    budget_.pay(std::min(left.text()->size(), right.text()->size()), offset);
    order = left.text()->bytes().compare(right.text()->bytes());
  } else {
    wrong_kinds("<", left, right, offset);
  }
  switch (op) {
    case CompareOp::lt:
      return order < 0;
    case CompareOp::le:
      return order <= 0;
    case CompareOp::gt:
      return order > 0;
    default:
      return order >= 0;
  }
}

bool Evaluator::contains(const Value& container, const Value& item, size_t offset) {
  const auto pay = [&](size_t cost) { budget_.pay(cost, offset); };
  if (const Text* text = container.text()) {
    if (item.text() == nullptr) wrong_kinds("in", item, container, offset);
    budget_.pay(text->size(), offset);
    return find_bytes(text->bytes(), item.text()->bytes(), 0) != std::string::npos;
  }
  if (const List* list = container.list()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& other) { return equal(item, other, pay); });
  }
  if (const Dict* dict = container.dict()) {
    budget_.pay_values(dict->items.size(), offset);
    return item.text() != nullptr && dict->find(item.text()->bytes()) != nullptr;
  }
  if (container.is_undefined()) return false;
  wrong_kinds("in", item, container, offset);
}

}  // namespace kvik::jinja
