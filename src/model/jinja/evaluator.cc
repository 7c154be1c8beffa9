#include "model/jinja/evaluator.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/strings.h"

namespace kvik::jinja {

// --- statements ---

void Evaluator::run(const Block& block) {
  for (const Stmt& stmt : block) run(stmt);
}

void Evaluator::run(const Stmt& stmt) {
  budget_.pay_step(stmt.offset);
  switch (stmt.kind) {
    case Stmt::Kind::data:
      return print(stmt.data, stmt.offset);
    case Stmt::Kind::print:
      return print(to_text(eval(*stmt.expr), stmt.expr->offset), stmt.offset);
    case Stmt::Kind::if_:
      return run_if(stmt);
    case Stmt::Kind::for_:
      return run_for(stmt);
    case Stmt::Kind::set:
      return assign(stmt.targets[0], eval(*stmt.expr));
    case Stmt::Kind::set_attr:
      return run_set_attr(stmt);
    case Stmt::Kind::set_block:
      return run_set_block(stmt);
  }
}

void Evaluator::print(const Text& text, size_t offset) {
  budget_.pay_text(text, offset);
  outputs_.back().append(text);
  if (outputs_.back().size() > max_output_bytes_) {
    refuse("the output is longer than the limit of " + std::to_string(max_output_bytes_) + " bytes",
           offset);
  }
}

void Evaluator::run_if(const Stmt& stmt) {
  for (const Stmt::Branch& branch : stmt.branches) {
    if (eval(*branch.condition).truthy()) return run(branch.body);
  }
  run(stmt.else_body);
}

void Evaluator::run_for(const Stmt& stmt) {
  std::vector<Value> items = to_items(eval(*stmt.expr), stmt.expr->offset, budget_);
  if (stmt.filter != nullptr) {
    std::vector<Value> kept;
    for (Value& item : items) {
      scopes_.emplace_back();
      bind_targets(stmt, item);
      if (eval(*stmt.filter).truthy()) kept.push_back(std::move(item));
      scopes_.pop_back();
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    scopes_.emplace_back();
    run(stmt.else_body);
    scopes_.pop_back();
    return;
  }
  const auto shared = std::make_shared<const std::vector<Value>>(std::move(items));
  for (size_t i = 0; i < shared->size(); ++i) {
    // A variable that the body sets lives until the end of this turn.
    scopes_.emplace_back();
    assign("loop", Value(std::make_shared<const Loop>(Loop{shared, i})));
    bind_targets(stmt, (*shared)[i]);
    run(stmt.body);
    scopes_.pop_back();
  }
}

void Evaluator::bind_targets(const Stmt& stmt, const Value& item) {
  budget_.pay_step(stmt.offset);
  if (stmt.targets.size() == 1) return assign(stmt.targets[0], item);
  const std::vector<Value> parts = to_items(item, stmt.offset, budget_);
  if (parts.size() != stmt.targets.size()) {
    fail("a loop over " + std::to_string(stmt.targets.size()) + " targets met " +
             std::to_string(parts.size()) + " values",
         stmt.offset);
  }
  for (size_t i = 0; i < parts.size(); ++i) assign(stmt.targets[i], parts[i]);
}

void Evaluator::run_set_attr(const Stmt& stmt) {
  const Value target = lookup(stmt.targets[0]);
  if (target.ns() == nullptr) {
    fail("\"" + stmt.targets[0] + "\" is " + std::string(target.kind()) +
             "; only a namespace has attributes to set",
         stmt.offset);
  }
  target.ns()->set(stmt.attribute, stored(eval(*stmt.expr), stmt.offset));
}

void Evaluator::run_set_block(const Stmt& stmt) {
  scopes_.emplace_back();
  outputs_.emplace_back();
  run(stmt.body);
  Value value(std::move(outputs_.back()));
  outputs_.pop_back();
  scopes_.pop_back();
  assign(stmt.targets[0], std::move(value));
}

// --- variables ---

Value Evaluator::lookup(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    for (const auto& variable : *scope) {
      if (variable.first == name) return variable.second;
    }
  }
  return Value(Undefined{name});
}

void Evaluator::assign(const std::string& name, Value value) {
  for (auto& variable : scopes_.back()) {
    if (variable.first == name) {
      variable.second = std::move(value);
      return;
    }
  }
  scopes_.back().emplace_back(name, std::move(value));
}

Value Evaluator::stored(Value value, size_t offset) const {
  if (!value.is_plain_data()) {
    refuse("storing " + std::string(value.kind()) + " in another value is not supported", offset);
  }
  if (value.depth() >= kMaxDepth) {
    refuse("values nested deeper than " + std::to_string(kMaxDepth), offset);
  }
  return value;
}

// --- expressions ---

Value Evaluator::eval(const Expr& expr) {
  budget_.pay_step(expr.offset);
  switch (expr.kind) {
    case Expr::Kind::literal:
      return expr.value;
    case Expr::Kind::list:
      return eval_list(expr);
    case Expr::Kind::dict:
      return eval_dict(expr);
    case Expr::Kind::name:
      return lookup(expr.name);
    case Expr::Kind::attribute:
      return eval_attribute(expr);
    case Expr::Kind::index:
      return eval_index(expr);
    case Expr::Kind::slice:
      return eval_slice(expr);
    case Expr::Kind::call:
      return eval_call(expr);
    case Expr::Kind::method:
      return eval_method(expr);
    case Expr::Kind::filter:
      return eval_filter(expr);
    case Expr::Kind::test:
      return Value(apply_test(expr.test, eval(*expr.args[0])) != expr.negated);
    case Expr::Kind::not_:
      return Value(!eval(*expr.args[0]).truthy());
    case Expr::Kind::minus:
    case Expr::Kind::plus:
    case Expr::Kind::binary:
      return eval_binary(expr);
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

Value Evaluator::eval_list(const Expr& expr) {
  budget_.pay_values(expr.args.size(), expr.offset);
  List list;
  for (const ExprPtr& arg : expr.args) list.items.push_back(stored(eval(*arg), arg->offset));
  return Value(std::move(list));
}

Value Evaluator::eval_dict(const Expr& expr) {
  Dict dict;
  for (size_t i = 0; i < expr.args.size(); i += 2) {
    const Value key = eval(*expr.args[i]);
    if (key.text() == nullptr) {
      refuse("a mapping with " + std::string(key.kind()) + " as a key is not supported",
             expr.args[i]->offset);
    }
    budget_.pay_text(*key.text(), expr.offset);
    budget_.pay_values(1 + dict.items.size(), expr.offset);
    Value value = stored(eval(*expr.args[i + 1]), expr.args[i + 1]->offset);
    const auto same = std::find_if(dict.items.begin(), dict.items.end(), [&](const auto& item) {
      return item.first.bytes() == key.text()->bytes();
    });
    if (same != dict.items.end()) {
      same->second = std::move(value);
    } else {
      dict.items.emplace_back(*key.text(), std::move(value));
    }
  }
  return Value(std::move(dict));
}

std::vector<Value> Evaluator::eval_args(const Expr& expr) {
  std::vector<Value> args;
  for (size_t i = 1; i < expr.args.size(); ++i) args.push_back(eval(*expr.args[i]));
  return args;
}

Value Evaluator::eval_filter(const Expr& expr) {
  const Value object = eval(*expr.args[0]);
  if (expr.filter == Filter::tojson) {
    std::optional<int64_t> indent;
    for (const auto& item : expr.named) {
      const Value value = eval(*item.second);
      if (value.is_none()) continue;
      if (value.integer() == nullptr) {
        refuse("an indent that is " + std::string(value.kind()) + " is not supported", expr.offset);
      }
      indent = *value.integer();
    }
    return Value(to_json(object, indent, expr.offset, budget_));
  }
  const std::vector<Value> args = eval_args(expr);
  return apply_filter(expr.filter, {object, args, expr.name, expr.offset, budget_});
}

Value Evaluator::eval_method(const Expr& expr) {
  const Value object = eval(*expr.args[0]);
  const std::vector<Value> args = eval_args(expr);
  return call_method(expr.method, {object, args, expr.name, expr.offset, budget_});
}

Value Evaluator::make_namespace(const Expr& expr) {
  if (!expr.args.empty()) {
    refuse("\"namespace\" with an argument that has no name is not supported", expr.offset);
  }
  auto ns = std::make_shared<Namespace>();
  for (const auto& item : expr.named) {
    budget_.pay_values(1 + ns->items.size(), expr.offset);
    ns->set(item.first, stored(eval(*item.second), item.second->offset));
  }
  return Value(std::move(ns));
}

Value Evaluator::eval_call(const Expr& expr) {
  const Value variable = lookup(expr.name);
  if (!variable.is_undefined()) {
    fail("\"" + expr.name + "\" is " + std::string(variable.kind()) + ", not a function",
         expr.offset);
  }
  if (expr.name == "namespace") return make_namespace(expr);
  if (expr.name == "raise_exception") {
    if (expr.args.size() != 1 || !expr.named.empty()) {
      refuse("\"raise_exception\" without exactly one argument is not supported", expr.offset);
    }
    const Text message = to_text(eval(*expr.args[0]), expr.offset);
    throw TemplateError{StatusCode::invalid_argument,
                        "the template refuses these messages: " + message.bytes(), expr.offset};
  }
  refuse("the function \"" + expr.name + "\" is not supported", expr.offset);
}

}  // namespace kvik::jinja
