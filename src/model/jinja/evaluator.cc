// Evaluator: statements, scopes and macros.
#include "model/jinja/evaluator.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "model/jinja/error.h"

namespace kvik::jinja {

namespace {

// What a scope costs, roughly.
constexpr size_t kScopeCost = 128;

}  // namespace

// A scope for the life of this object, and longer if a macro was made in it.
class Evaluator::ScopeGuard {
 public:
  ScopeGuard(Evaluator& evaluator, Scope* parent)
      : evaluator_(evaluator), before_(evaluator.scope_), scope_(std::make_unique<Scope>()) {
    scope_->parent = parent;
    evaluator_.scope_ = scope_.get();
  }
  explicit ScopeGuard(Evaluator& evaluator) : ScopeGuard(evaluator, evaluator.scope_) {}
  ~ScopeGuard() {
    evaluator_.scope_ = before_;
    if (scope_->captured) evaluator_.kept_.push_back(std::move(scope_));
  }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Evaluator& evaluator_;
  Scope* before_;
  std::unique_ptr<Scope> scope_;
};

Evaluator::Evaluator(Variables globals, size_t max_output_bytes, LocalTime now, Budget budget)
    : globals_(std::make_unique<Scope>()),
      scope_(globals_.get()),
      max_output_bytes_(max_output_bytes),
      now_(now),
      budget_(budget) {
  globals_->variables = std::move(globals);
  outputs_.emplace_back();
}

Text Evaluator::render(const Block& block) {
  run(block);
  return std::move(outputs_.front());
}

// --- statements ---

Evaluator::Flow Evaluator::run(const Block& block) {
  for (const Stmt& stmt : block) {
    if (const Flow flow = run(stmt); flow != Flow::next) return flow;
  }
  return Flow::next;
}

Evaluator::Flow Evaluator::run(const Stmt& stmt) {
  budget_.pay_step(stmt.offset);
  const Depth depth(*this, stmt.offset);
  switch (stmt.kind) {
    case Stmt::Kind::data:
      print(stmt.data, stmt.offset);
      break;
    case Stmt::Kind::print:
      print(text(eval(*stmt.expr), stmt.expr->offset), stmt.offset);
      break;
    case Stmt::Kind::if_:
      return run_if(stmt);
    case Stmt::Kind::for_:
      return run_for(stmt, eval(*stmt.expr), 0);
    case Stmt::Kind::set:
      bind(stmt.target, eval(*stmt.expr), stmt.offset);
      break;
    case Stmt::Kind::set_block:
      return run_set_block(stmt);
    case Stmt::Kind::with:
      return run_with(stmt);
    case Stmt::Kind::filter:
      return run_filter_block(stmt);
    case Stmt::Kind::macro:
      assign(stmt.macro->name, make_macro(*stmt.macro, stmt.offset));
      break;
    case Stmt::Kind::call:
      run_call_block(stmt);
      break;
    case Stmt::Kind::scope: {
      const ScopeGuard scope(*this, stmt.at_top ? globals_.get() : scope_);
      run(stmt.body);
      break;
    }
    case Stmt::Kind::break_:
      return Flow::break_;
    case Stmt::Kind::continue_:
      return Flow::continue_;
    case Stmt::Kind::unsupported:
      refuse("the tag \"" + stmt.data.bytes() + "\" is not supported", stmt.offset);
  }
  return Flow::next;
}

void Evaluator::print(const Text& text, size_t offset) {
  budget_.pay_text(text, offset);
  outputs_.back().append(text);
  if (outputs_.back().size() > max_output_bytes_) {
    refuse("the output is longer than the limit of " + std::to_string(max_output_bytes_) + " bytes",
           offset);
  }
}

void Evaluator::print_string(const Value& value, std::string_view what, size_t offset) {
  if (value.text() == nullptr) {
    fail(std::string(what) + " gives " + std::string(value.kind()) + ", not a string", offset);
  }
  print(*value.text(), offset);
}

Evaluator::Flow Evaluator::capture(const Block& body, Scope* parent, Text& text) {
  const ScopeGuard scope(*this, parent);
  outputs_.emplace_back();
  const Flow flow = run(body);
  text = std::move(outputs_.back());
  outputs_.pop_back();
  return flow;
}

Evaluator::Flow Evaluator::run_if(const Stmt& stmt) {
  for (const Stmt::Branch& branch : stmt.branches) {
    if (eval(*branch.condition).truthy()) return run(branch.body);
  }
  return run(stmt.else_body);
}

std::vector<Value> Evaluator::filtered(const Stmt& stmt, std::vector<Value> items) {
  std::vector<Value> kept;
  for (Value& item : items) {
    const ScopeGuard scope(*this);
    bind(stmt.target, item, stmt.offset);
    if (eval(*stmt.filter).truthy()) kept.push_back(std::move(item));
  }
  return kept;
}

Evaluator::Flow Evaluator::run_for(const Stmt& stmt, const Value& iterable, int depth0) {
  std::vector<Value> items = to_items(iterable, stmt.expr->offset, budget_);
  if (stmt.filter != nullptr) items = filtered(stmt, std::move(items));
  auto loop = std::make_shared<Loop>();
  loop->items = std::make_shared<const std::vector<Value>>(std::move(items));
  loop->depth0 = depth0;
  if (stmt.recursive) loop->recursive = &stmt;
  loop->outside = scope_;
  if (stmt.recursive) {
    for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->captured = true;
  }
  bool completed = false;  // a turn that neither "break" nor "continue" cut
  for (size_t i = 0; i < loop->items->size(); ++i) {
    budget_.pay(kScopeCost, stmt.offset);
    // A variable that the body sets lives until the end of this turn.
    const ScopeGuard scope(*this);
    loop->index0 = i;
    assign("loop", Value(loop));
    bind(stmt.target, (*loop->items)[i], stmt.offset);
    const Flow flow = run(stmt.body);
    if (flow == Flow::break_) break;
    completed |= flow == Flow::next;
  }
  if (completed) return Flow::next;
  const ScopeGuard scope(*this);
  return run(stmt.else_body);
}

// Where the body leaves a loop, what it printed is lost, as in Jinja.
Evaluator::Flow Evaluator::run_set_block(const Stmt& stmt) {
  Text body;
  if (const Flow flow = capture(stmt.body, scope_, body); flow != Flow::next) return flow;
  Value value(std::move(body));
  if (stmt.expr != nullptr) {
    body_ = std::move(value);
    value = eval(*stmt.expr);
  }
  bind(stmt.target, value, stmt.offset);
  return Flow::next;
}

Evaluator::Flow Evaluator::run_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& item : stmt.with) values.push_back(eval(*item.second));
  const ScopeGuard scope(*this);
  for (size_t i = 0; i < values.size(); ++i) bind(stmt.with[i].first, values[i], stmt.offset);
  return run(stmt.body);
}

Evaluator::Flow Evaluator::run_filter_block(const Stmt& stmt) {
  Text body;
  if (const Flow flow = capture(stmt.body, scope_, body); flow != Flow::next) return flow;
  body_ = Value(std::move(body));
  print_string(eval(*stmt.expr), "a filter block", stmt.offset);
  return Flow::next;
}

void Evaluator::run_call_block(const Stmt& stmt) {
  const Value callee = eval(*stmt.expr->args[0]);
  Args args = eval_args(*stmt.expr);
  for (const auto& item : args.named) {
    if (item.first == "caller") fail("the argument \"caller\" is given twice", stmt.offset);
  }
  args.named.emplace_back("caller", make_macro(*stmt.macro, stmt.offset));
  print_string(call(callee, std::move(args), stmt.expr->offset), "a call block", stmt.offset);
}

void Evaluator::bind(const Target& target, const Value& value, size_t offset) {
  budget_.pay_step(offset);
  if (!target.is_tuple) {
    if (target.attribute.empty()) return assign(target.name, value);
    const Value object = lookup(target.name, offset);
    if (object.ns() == nullptr) {
      fail("\"" + target.name + "\" is " + std::string(object.kind()) +
               "; only a namespace has attributes to set",
           offset);
    }
    budget_.pay_values(object.ns()->items.size(), offset);
    return object.ns()->set(target.attribute, stored(value, offset));
  }
  const std::vector<Value> parts = to_items(value, offset, budget_);
  if (parts.size() != target.parts.size()) {
    fail(std::to_string(parts.size()) + " values for " + std::to_string(target.parts.size()) +
             " targets",
         offset);
  }
  for (size_t i = 0; i < parts.size(); ++i) bind(target.parts[i], parts[i], offset);
}

// --- macros ---

Value Evaluator::make_macro(const MacroCode& macro, size_t offset) {
  budget_.pay(kScopeCost, offset);
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->captured = true;
  auto callable = std::make_shared<Callable>();
  callable->kind = Callable::Kind::macro;
  callable->name = macro.name;
  callable->macro = &macro;
  callable->outside = scope_;
  return Value(std::move(callable));
}

void Evaluator::bind_parameters(const MacroCode& macro, Args& args, size_t offset) {
  const auto take_named = [&args](const std::string& name) -> std::optional<Value> {
    for (auto it = args.named.begin(); it != args.named.end(); ++it) {
      if (it->first != name) continue;
      Value value = std::move(it->second);
      args.named.erase(it);
      return value;
    }
    return std::nullopt;
  };
  const size_t first_default = macro.params.size() - macro.defaults.size();
  for (size_t i = 0; i < macro.params.size(); ++i) {
    const std::string& param = macro.params[i];
    std::optional<Value> named = take_named(param);
    if (i < args.plain.size()) {
      if (named) fail("two values for the parameter \"" + param + "\"", offset);
      assign(param, args.plain[i]);
    } else if (named) {
      assign(param, *std::move(named));
    } else if (i >= first_default) {
      assign(param, eval(*macro.defaults[i - first_default]));
    } else {
      assign(param, Value(Undefined{param}));
    }
  }
  const auto is_param = [&macro](const char* name) {
    return std::find(macro.params.begin(), macro.params.end(), name) != macro.params.end();
  };
  if (macro.uses_caller && !is_param("caller")) {
    const std::optional<Value> caller = take_named("caller");
    assign("caller", caller ? *caller : Value(Undefined{"caller"}));
  }
  std::vector<Value> more;
  for (size_t i = macro.params.size(); i < args.plain.size(); ++i) {
    more.push_back(std::move(args.plain[i]));
  }
  if (macro.uses_varargs && !is_param("varargs")) {
    assign("varargs", make_list(std::move(more), List::Kind::tuple, offset));
  } else if (!more.empty()) {
    fail("the macro \"" + macro.name + "\" takes " + std::to_string(macro.params.size()) +
             " arguments, not " + std::to_string(args.plain.size()),
         offset);
  }
  if (macro.uses_kwargs && !is_param("kwargs")) {
    Dict named;
    for (auto& item : args.named) {
      put(named, Value(Text(item.first, true)), std::move(item.second), offset);
    }
    assign("kwargs", Value(std::move(named)));
  } else if (!args.named.empty()) {
    fail("the macro \"" + macro.name + "\" takes no argument \"" + args.named[0].first + "\"",
         offset);
  }
}

Value Evaluator::call_macro(const Callable& callable, Args args, size_t offset) {
  const Depth depth(*this, offset);
  budget_.pay(kScopeCost, offset);
  const ScopeGuard scope(*this, callable.outside);
  bind_parameters(*callable.macro, args, offset);
  outputs_.emplace_back();
  run(callable.macro->body);
  Text output = std::move(outputs_.back());
  outputs_.pop_back();
  return Value(std::move(output));
}

Value Evaluator::call_loop(const Loop& loop, Args& args, size_t offset) {
  if (loop.recursive == nullptr) fail("a call of a loop that is not recursive", offset);
  if (args.plain.size() != 1 || !args.named.empty()) {
    fail("a loop is called with one argument", offset);
  }
  const Depth depth(*this, offset);
  budget_.pay(kScopeCost, offset);
  const Stmt& stmt = *loop.recursive;
  const int depth0 = loop.depth0 + 1;
  const ScopeGuard scope(*this, loop.outside);
  outputs_.emplace_back();
  run_for(stmt, args.plain[0], depth0);
  Text output = std::move(outputs_.back());
  outputs_.pop_back();
  return Value(std::move(output));
}

// --- variables ---

Value Evaluator::lookup(const std::string& name, size_t offset) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (const auto& variable : scope->variables) {
      if (variable.first == name) return variable.second;
    }
  }
  if (find_function(name) != nullptr) {
    auto function = std::make_shared<Callable>();
    function->name = name;
    return Value(std::move(function));
  }
  if (name == "self") refuse("\"self\" is not supported", offset);
  return Value(Undefined{name});
}

void Evaluator::assign(const std::string& name, Value value) {
  for (auto& variable : scope_->variables) {
    if (variable.first == name) {
      variable.second = std::move(value);
      return;
    }
  }
  scope_->variables.emplace_back(name, std::move(value));
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

Value Evaluator::make_list(std::vector<Value> items, List::Kind kind, size_t offset) {
  budget_.pay(sizeof(List), offset);
  budget_.pay_values(items.size(), offset);
  for (const Value& item : items) stored(item, offset);
  return Value(List{.items = std::move(items), .kind = kind});
}

void Evaluator::put(Dict& dict, Value key, Value value, size_t offset) {
  if (key.dict() != nullptr || (key.list() != nullptr && key.list()->kind == List::Kind::list)) {
    fail("a mapping with " + std::string(key.kind()) + " as a key", offset);
  }
  budget_.pay_values(1 + dict.items.size(), offset);
  stored(key, offset);
  stored(value, offset);
  const auto pay = [&](size_t cost) { budget_.pay(cost, offset); };
  for (auto& item : dict.items) {
    if (equal(item.first, key, pay)) {
      item.second = std::move(value);
      return;
    }
  }
  dict.items.emplace_back(std::move(key), std::move(value));
}

}  // namespace kvik::jinja
