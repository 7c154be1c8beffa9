// Evaluator: arithmetic, concatenation and comparisons.
#include <algorithm>
#include <cmath>
#include <optional>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"
#include "model/jinja/numbers.h"

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

// Floor division and its remainder, as in Python. Requires: b != 0 and no overflow.
int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

// nullopt if the result is beyond 64 bits. Requires: b >= 0.
std::optional<int64_t> power(int64_t a, int64_t b) {
  int64_t result = 1;
  while (b > 0) {
    if ((b & 1) != 0 && __builtin_mul_overflow(result, a, &result)) return std::nullopt;
    b >>= 1;
    if (b > 0 && __builtin_mul_overflow(a, a, &a)) return std::nullopt;
  }
  return result;
}

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
    case BinaryOp::power:
      return power(a, b);
    case BinaryOp::divide:
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

// The remainder has the sign of b, as in Python.
double float_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double float_floor_divide(double a, double b) {
  // As CPython: from the remainder, so that a == b * quotient + rest stays as true as it can be.
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

double float_arithmetic(BinaryOp op, double a, double b, size_t offset) {
  switch (op) {
    case BinaryOp::add:
      return a + b;
    case BinaryOp::subtract:
      return a - b;
    case BinaryOp::multiply:
      return a * b;
    case BinaryOp::power: {
      if (a == 0 && b < 0) fail("zero to a negative power", offset);
      if (a < 0 && b != std::floor(b)) {
        refuse("a complex number is not supported", offset);
      }
      const double result = std::pow(a, b);
      if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) {
        fail("the result is too large for a float", offset);
      }
      return result;
    }
    default:
      break;
  }
  if (b == 0) fail("division by zero", offset);
  return op == BinaryOp::divide         ? a / b
         : op == BinaryOp::floor_divide ? float_floor_divide(a, b)
                                        : float_modulo(a, b);
}

std::string_view spelling(BinaryOp op) {
  static constexpr std::string_view kSpellings[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kSpellings[static_cast<size_t>(op)];
}

}  // namespace

Value Evaluator::eval_unary(const Expr& expr) {
  const Value value = eval(*expr.args[0]);
  const bool minus = expr.kind == Expr::Kind::minus;
  if (value.real() != nullptr) return Value(minus ? -*value.real() : *value.real());
  const std::optional<int64_t> integer = as_integer(value);
  if (!integer) wrong_kinds(minus ? "-" : "+", Value(int64_t{0}), value, expr.offset);
  int64_t result = *integer;
  if (minus && __builtin_sub_overflow(int64_t{0}, *integer, &result)) {
    refuse("an integer beyond 64 bits is not supported", expr.offset);
  }
  return Value(result);
}

Value Evaluator::binary(BinaryOp op, const Value& left, const Value& right, size_t offset) {
  const std::optional<int64_t> a = as_integer(left), b = as_integer(right);
  if (a && b && op != BinaryOp::divide && !(op == BinaryOp::power && *b < 0)) {
    const std::optional<int64_t> result = arithmetic(op, *a, *b, offset);
    if (!result) refuse("an integer beyond 64 bits is not supported", offset);
    return Value(*result);
  }
  const std::optional<double> x = as_double(left), y = as_double(right);
  if (x && y) return Value(float_arithmetic(op, *x, *y, offset));
  if (op == BinaryOp::add) return add(left, right, offset);
  if (op == BinaryOp::modulo && left.text() != nullptr) {
    return Value(format_percent(*left.text(), right, offset, budget_));
  }
  if (op == BinaryOp::multiply) {
    if (b && (left.text() != nullptr || left.list() != nullptr)) return repeat(left, *b, offset);
    if (a && (right.text() != nullptr || right.list() != nullptr)) return repeat(right, *a, offset);
  }
  wrong_kinds(spelling(op), left, right, offset);
}

Value Evaluator::repeat(const Value& sequence, int64_t times, size_t offset) {
  const size_t size = sequence.text() != nullptr ? sequence.text()->cost()
                                                 : sequence.list()->items.size() * sizeof(Value);
  // What is empty stays so, however often.
  const auto count = static_cast<size_t>(size == 0 ? 0 : std::max<int64_t>(0, times));
  size_t total = 0;
  if (__builtin_mul_overflow(size + 1, count, &total)) total = SIZE_MAX / 4;
  budget_.pay(std::min(total, SIZE_MAX / 4), offset);
  if (const Text* text = sequence.text()) {
    Text result;
    for (size_t i = 0; i < count; ++i) result.append(*text);
    return Value(std::move(result).with_markup(text->markup()));
  }
  const List& list = *sequence.list();
  if (list.kind != List::Kind::list && list.kind != List::Kind::tuple) {
    fail("\"*\" between " + std::string(sequence.kind()) + " and an integer", offset);
  }
  std::vector<Value> items;
  for (size_t i = 0; i < count; ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return make_list(std::move(items), list.kind, offset);
}

Value Evaluator::add(const Value& left, const Value& right, size_t offset) {
  if (left.text() != nullptr && right.text() != nullptr) {
    budget_.pay_text(*left.text(), offset);
    budget_.pay_text(*right.text(), offset);
    const bool markup = left.text()->markup() || right.text()->markup();
    Text text = markup ? escape_html(*left.text()) : *left.text();
    text.append(markup ? escape_html(*right.text()) : *right.text());
    return Value(std::move(text).with_markup(markup));
  }
  const List* a = left.list();
  const List* b = right.list();
  if (a != nullptr && b != nullptr && a->kind == b->kind &&
      (a->kind == List::Kind::list || a->kind == List::Kind::tuple)) {
    budget_.pay_values(a->items.size() + b->items.size(), offset);
    std::vector<Value> items = a->items;
    items.insert(items.end(), b->items.begin(), b->items.end());
    return make_list(std::move(items), a->kind, offset);
  }
  wrong_kinds("+", left, right, offset);
}

Value Evaluator::eval_concat(const Expr& expr) {
  Text result;
  for (const ExprPtr& arg : expr.args) {
    const Text part = text(eval(*arg), arg->offset);
    budget_.pay_text(part, expr.offset);
    result.append(part);
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

// -1, 0, 1, or 2 for what is not a number.
int Evaluator::order(const Value& left, const Value& right, std::string_view op, size_t offset) {
  budget_.pay_step(offset);
  const std::optional<int64_t> a = as_integer(left), b = as_integer(right);
  if (a && b) return *a < *b ? -1 : *a > *b ? 1 : 0;
  const std::optional<double> x = as_double(left), y = as_double(right);
  if (x && y) {
    if (std::isnan(*x) || std::isnan(*y)) return 2;
    // Exact where an integer is beyond the precision of doubles.
    const auto real_order = static_cast<long double>(a ? *a : 0) + (a ? 0.0L : *x) -
                            (static_cast<long double>(b ? *b : 0) + (b ? 0.0L : *y));
    if (std::isinf(*x) || std::isinf(*y)) return *x < *y ? -1 : *x > *y ? 1 : 0;
    return real_order < 0 ? -1 : real_order > 0 ? 1 : 0;
  }
  if (left.text() != nullptr && right.text() != nullptr) {
    // The order of UTF-8 bytes is that of code points.
    budget_.pay(std::min(left.text()->size(), right.text()->size()), offset);
    const int result = left.text()->bytes().compare(right.text()->bytes());
    return result < 0 ? -1 : result > 0 ? 1 : 0;
  }
  const List* p = left.list();
  const List* q = right.list();
  if (p == nullptr || q == nullptr || p->kind != q->kind ||
      (p->kind != List::Kind::list && p->kind != List::Kind::tuple)) {
    wrong_kinds(op, left, right, offset);
  }
  const auto pay = [&](size_t cost) { budget_.pay(cost, offset); };
  for (size_t i = 0; i < std::min(p->items.size(), q->items.size()); ++i) {
    if (equal(p->items[i], q->items[i], pay)) continue;
    const Depth depth(*this, offset);
    return order(p->items[i], q->items[i], op, offset);
  }
  return p->items.size() < q->items.size() ? -1 : p->items.size() > q->items.size() ? 1 : 0;
}

bool Evaluator::compare(CompareOp op, const Value& left, const Value& right, size_t offset) {
  const auto pay = [&](size_t cost) { budget_.pay(cost, offset); };
  switch (op) {
    case CompareOp::in:
      return contains(right, left, offset);
    case CompareOp::not_in:
      return !contains(right, left, offset);
    case CompareOp::eq:
      return equal(left, right, pay);
    case CompareOp::ne:
      return !equal(left, right, pay);
    case CompareOp::lt:
      return order(left, right, "<", offset) == -1;
    case CompareOp::le:
      return order(left, right, "<=", offset) <= 0;
    case CompareOp::gt:
      return order(left, right, ">", offset) == 1;
    case CompareOp::ge: {
      const int result = order(left, right, ">=", offset);
      return result == 0 || result == 1;
    }
  }
  return false;
}

bool Evaluator::contains(const Value& container, const Value& item, size_t offset) {
  const auto pay = [&](size_t cost) { budget_.pay(cost, offset); };
  if (const Text* text = container.text()) {
    if (item.text() == nullptr) wrong_kinds("in", item, container, offset);
    budget_.pay(text->size(), offset);
    return find_bytes(text->bytes(), item.text()->bytes(), 0) != std::string::npos;
  }
  if (const List* list = container.list()) {
    if (!list->error.empty()) fail(list->error, offset);
    for (size_t i = list->taken; i < list->items.size(); ++i) {
      if (list->kind == List::Kind::generator) list->taken = i + 1;
      if (equal(item, list->items[i], pay)) return true;
    }
    return false;
  }
  if (const Dict* dict = container.dict()) {
    budget_.pay_values(dict->items.size(), offset);
    if (item.text() != nullptr) return dict->find(item.text()->bytes()) != nullptr;
    if (item.dict() != nullptr ||
        (item.list() != nullptr && item.list()->kind == List::Kind::list)) {
      fail(std::string(item.kind()) + " cannot be a key of a mapping", offset);
    }
    return std::any_of(dict->items.begin(), dict->items.end(),
                       [&](const auto& entry) { return equal(entry.first, item, pay); });
  }
  if (container.is_undefined()) return false;
  wrong_kinds("in", item, container, offset);
}

}  // namespace kvik::jinja
