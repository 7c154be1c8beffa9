// Runs a template's syntax tree.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/budget.h"
#include "model/jinja/builtins.h"
#include "model/jinja/error.h"
#include "model/jinja/value.h"

namespace kvik::jinja {

// Local time as strftime_now writes it.
struct LocalTime {
  std::tm calendar;
  int microseconds;
};

struct Scope {
  Scope* parent = nullptr;
  Variables variables{};
  bool captured = false;  // a macro refers to it
};

// One rendering. Throws TemplateError.
class Evaluator {
 public:
  Evaluator(Variables globals, size_t max_output_bytes, LocalTime now, Budget budget);

  Text render(const Block& block);

  // --- for builtins ---

  Budget& budget() { return budget_; }
  const LocalTime& now() const { return now_; }
  Value call(const Value& callee, Args args, size_t offset);
  Value apply_filter(const std::string& name, const Value& object, Args args, size_t offset);
  bool apply_test(const std::string& name, const Value& object, Args args, size_t offset);
  // object.name and object[key].
  Value attribute(const Value& object, const std::string& name, size_t offset);
  Value item(const Value& object, const Value& key, size_t offset);
  bool compare(CompareOp op, const Value& left, const Value& right, size_t offset);
  Value binary(BinaryOp op, const Value& left, const Value& right, size_t offset);
  Text text(const Value& value, size_t offset) { return to_text(value, offset, budget_); }
  std::vector<Value> items(const Value& value, size_t offset) {
    return to_items(value, offset, budget_);
  }
  Value make_list(std::vector<Value> items, List::Kind kind, size_t offset);
  void put(Dict& dict, Value key, Value value, size_t offset);
  // Refuses what would make a list, mapping or namespace refer to itself or nest too deep.
  Value stored(Value value, size_t offset) const;

 private:
  // What comes after a statement.
  enum class Flow : uint8_t { next, break_, continue_ };
  class ScopeGuard;
  // Counts statements, expressions and calls inside each other. Keeps a recursive macro within any
  // stack.
  class Depth {
   public:
    Depth(Evaluator& evaluator, size_t offset) : depth_(evaluator.depth_) {
      if (depth_ >= kMaxNesting) refuse("calls nested deeper than the limit", offset);
      ++depth_;
    }
    ~Depth() { --depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    static constexpr int kMaxNesting = 1000;
    int& depth_;
  };

  Flow run(const Block& block);
  Flow run(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  Flow run_for(const Stmt& stmt, const Value& iterable, int depth0);
  std::vector<Value> filtered(const Stmt& stmt, std::vector<Value> items);
  Flow run_set_block(const Stmt& stmt);
  Flow run_with(const Stmt& stmt);
  void run_call_block(const Stmt& stmt);
  Flow run_filter_block(const Stmt& stmt);
  void print(const Text& text, size_t offset);
  // Refuses what is no string, as Jinja does where a block's filter or call gives it.
  void print_string(const Value& value, std::string_view what, size_t offset);
  // What the body prints, in a scope of its own under `parent`.
  Flow capture(const Block& body, Scope* parent, Text& text);
  void bind(const Target& target, const Value& value, size_t offset);
  Value make_macro(const MacroCode& macro, size_t offset);
  Value call_macro(const Callable& callable, Args args, size_t offset);
  void bind_parameters(const MacroCode& macro, Args& args, size_t offset);
  Value call_loop(const Loop& loop, Args& args, size_t offset);

  Value lookup(const std::string& name, size_t offset) const;
  void assign(const std::string& name, Value value);

  Value eval(const Expr& expr);
  Value eval_list(const Expr& expr, List::Kind kind);
  Value eval_dict(const Expr& expr);
  Value eval_slice(const Expr& expr);
  Value eval_call(const Expr& expr);
  Value eval_filter(const Expr& expr);
  Value eval_test(const Expr& expr);
  Value eval_unary(const Expr& expr);
  Value eval_concat(const Expr& expr);
  bool eval_compare(const Expr& expr);
  Args eval_args(const Expr& expr);
  Value repeat(const Value& sequence, int64_t times, size_t offset);
  Value add(const Value& left, const Value& right, size_t offset);
  bool contains(const Value& container, const Value& item, size_t offset);
  int order(const Value& left, const Value& right, std::string_view op, size_t offset);
  Value loop_attribute(const Value& object, const std::string& name);

  std::vector<std::unique_ptr<Scope>> kept_;  // captured ones that have ended
  std::unique_ptr<Scope> globals_;
  Scope* scope_;
  std::vector<Text> outputs_;  // the last one is written to
  size_t max_output_bytes_;
  LocalTime now_;
  Budget budget_;
  int depth_ = 0;
  Value body_;  // of a block on its way to the first of its filters
};

}  // namespace kvik::jinja
