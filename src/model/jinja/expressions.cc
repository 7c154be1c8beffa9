// Evaluator: expressions and calls.
#include <algorithm>
#include <memory>
#include <optional>

#include "kvik/core/check.h"
#include "model/jinja/error.h"
#include "model/jinja/evaluator.h"

namespace kvik::jinja {

Value Evaluator::eval(const Expr& expr) {
  budget_.pay_step(expr.offset);
  const Depth depth(*this, expr.offset);
  switch (expr.kind) {
    case Expr::Kind::literal:
      return expr.value;
    case Expr::Kind::list:
      return eval_list(expr, List::Kind::list);
    case Expr::Kind::tuple:
      return eval_list(expr, List::Kind::tuple);
    case Expr::Kind::dict:
      return eval_dict(expr);
    case Expr::Kind::name:
      return lookup(expr.name, expr.offset);
    case Expr::Kind::attribute:
      return attribute(eval(*expr.args[0]), expr.name, expr.offset);
    case Expr::Kind::index: {
      const Value object = eval(*expr.args[0]);
      return item(object, eval(*expr.args[1]), expr.offset);
    }
    case Expr::Kind::slice:
      return eval_slice(expr);
    case Expr::Kind::call:
      return eval_call(expr);
    case Expr::Kind::filter:
      return eval_filter(expr);
    case Expr::Kind::test:
      return eval_test(expr);
    case Expr::Kind::not_:
      return Value(!eval(*expr.args[0]).truthy());
    case Expr::Kind::minus:
    case Expr::Kind::plus:
      return eval_unary(expr);
    case Expr::Kind::binary: {
      const Value left = eval(*expr.args[0]);
      return binary(expr.binary, left, eval(*expr.args[1]), expr.offset);
    }
    case Expr::Kind::concat:
      return eval_concat(expr);
    case Expr::Kind::compare:
      return Value(eval_compare(expr));
    case Expr::Kind::and_: {
      Value left = eval(*expr.args[0]);
      return left.truthy() ? eval(*expr.args[1]) : left;
    }
    case Expr::Kind::or_: {
      Value left = eval(*expr.args[0]);
      return left.truthy() ? left : eval(*expr.args[1]);
    }
    case Expr::Kind::conditional:
      if (eval(*expr.args[1]).truthy()) return eval(*expr.args[0]);
      if (expr.args[2] != nullptr) return eval(*expr.args[2]);
      return Value(Undefined{"a condition without else"});
  }
  KVIK_CHECK(false, "an expression without code");
}

Value Evaluator::eval_list(const Expr& expr, List::Kind kind) {
  std::vector<Value> items;
  for (const ExprPtr& arg : expr.args) items.push_back(eval(*arg));
  return make_list(std::move(items), kind, expr.offset);
}

Value Evaluator::eval_dict(const Expr& expr) {
  Dict dict;
  for (size_t i = 0; i < expr.args.size(); i += 2) {
    Value key = eval(*expr.args[i]);
    put(dict, std::move(key), eval(*expr.args[i + 1]), expr.offset);
  }
  return Value(std::move(dict));
}

Args Evaluator::eval_args(const Expr& expr) {
  Args args;
  for (size_t i = 1; i < expr.args.size(); ++i) args.plain.push_back(eval(*expr.args[i]));
  for (const auto& item : expr.named) {
    const bool twice = std::any_of(args.named.begin(), args.named.end(),
                                   [&](const auto& other) { return other.first == item.first; });
    if (twice) fail("the argument \"" + item.first + "\" is given twice", expr.offset);
    args.named.emplace_back(item.first, eval(*item.second));
  }
  if (expr.more_args != nullptr) {
    for (Value& item : items(eval(*expr.more_args), expr.offset)) {
      args.plain.push_back(std::move(item));
    }
  }
  if (expr.more_named != nullptr) {
    const Value more = eval(*expr.more_named);
    if (more.dict() == nullptr) fail("\"**\" needs a mapping", expr.offset);
    more.dict()->note_whole();
    budget_.pay_values(more.dict()->items.size(), expr.offset);
    for (const auto& [key, value] : more.dict()->items) {
      if (key.text() == nullptr) fail("the name of an argument is no string", expr.offset);
      const std::string& name = key.text()->bytes();
      const bool twice = std::any_of(args.named.begin(), args.named.end(),
                                     [&](const auto& other) { return other.first == name; });
      if (twice) fail("the argument \"" + name + "\" is given twice", expr.offset);
      args.named.emplace_back(name, value);
    }
  }
  return args;
}

// The first filter of a block has no expression of its own: it is applied to `body_`.
Value Evaluator::eval_filter(const Expr& expr) {
  const Value object =
      expr.args[0] != nullptr ? eval(*expr.args[0]) : std::exchange(body_, Value());
  return apply_filter(expr.name, object, eval_args(expr), expr.offset);
}

Value Evaluator::eval_test(const Expr& expr) {
  const Value object = eval(*expr.args[0]);
  return Value(apply_test(expr.name, object, eval_args(expr), expr.offset) != expr.negated);
}

Value Evaluator::eval_call(const Expr& expr) {
  const Value callee = eval(*expr.args[0]);
  return call(callee, eval_args(expr), expr.offset);
}

Value Evaluator::call(const Value& callee, Args args, size_t offset) {
  if (callee.is_undefined()) fail("\"" + callee.undefined_name() + "\" is undefined", offset);
  if (callee.loop() != nullptr) return call_loop(*callee.loop(), args, offset);
  Callable* callable = callee.callable();
  if (callable == nullptr) fail(std::string(callee.kind()) + " cannot be called", offset);
  budget_.pay_step(offset);
  const auto no_arguments = [&] {
    if (!args.plain.empty() || !args.named.empty()) fail("a joiner takes no argument", offset);
  };
  switch (callable->kind) {
    case Callable::Kind::macro:
      return call_macro(*callable, std::move(args), offset);
    case Callable::Kind::function:
      return find_function(callable->name)(
          {"function", callable->name, callee, args, offset, *this, budget_});
    case Callable::Kind::method: {
      const Call call{"method", callable->name, callable->object, args, offset, *this, budget_};
      if (callable->object.text() != nullptr) return call_text_method(call);
      if (callable->object.dict() != nullptr) return call_dict_method(call);
      return call_list_method(call);
    }
    case Callable::Kind::joiner:
      no_arguments();
      return callable->position++ == 0 ? Value(Text()) : callable->values[0];
    case Callable::Kind::cycler:
      break;
  }
  fail("a cycler cannot be called", offset);
}

Value Evaluator::apply_filter(const std::string& name, const Value& object, Args args,
                              size_t offset) {
  const Builtin filter = find_filter(name);
  if (filter == nullptr) refuse("the filter \"" + name + "\" is not supported", offset);
  budget_.pay_step(offset);
  return filter({"filter", name, object, args, offset, *this, budget_});
}

bool Evaluator::apply_test(const std::string& name, const Value& object, Args args, size_t offset) {
  const Builtin test = find_test(name);
  if (test == nullptr) refuse("the test \"" + name + "\" is not supported", offset);
  budget_.pay_step(offset);
  return test({"test", name, object, args, offset, *this, budget_}).truthy();
}

}  // namespace kvik::jinja
