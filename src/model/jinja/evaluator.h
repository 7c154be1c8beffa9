// Runs a template's syntax tree.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/budget.h"
#include "model/jinja/value.h"

namespace kvik::jinja {

using Variables = std::vector<std::pair<std::string, Value>>;

// One rendering. Throws TemplateError.
class Evaluator {
 public:
  Evaluator(Variables globals, size_t max_output_bytes, Budget budget)
      : max_output_bytes_(max_output_bytes), budget_(budget) {
    scopes_.push_back(std::move(globals));
    outputs_.emplace_back();
  }

  Text render(const Block& block) {
    run(block);
    return std::move(outputs_.front());
  }

 private:
  void run(const Block& block);
  void run(const Stmt& stmt);
  void run_if(const Stmt& stmt);
  void run_for(const Stmt& stmt);
  void run_set_attr(const Stmt& stmt);
  void run_set_block(const Stmt& stmt);
  void bind_targets(const Stmt& stmt, const Value& item);
  void print(const Text& text, size_t offset);

  Value lookup(const std::string& name) const;
  void assign(const std::string& name, Value value);

  Value eval(const Expr& expr);
  Value eval_list(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_attribute(const Expr& expr);
  Value eval_index(const Expr& expr);
  Value eval_slice(const Expr& expr);
  Value eval_call(const Expr& expr);
  Value eval_filter(const Expr& expr);
  Value eval_method(const Expr& expr);
  Value eval_binary(const Expr& expr);
  Value eval_concat(const Expr& expr);
  bool eval_compare(const Expr& expr);
  bool compare(CompareOp op, const Value& left, const Value& right, size_t offset);
  bool contains(const Value& container, const Value& item, size_t offset);
  Value add(const Value& left, const Value& right, size_t offset);
  std::vector<Value> eval_args(const Expr& expr);
  Value make_namespace(const Expr& expr);
  // Refuses what would make a list, mapping or namespace refer to itself or nest too deep.
  Value stored(Value value, size_t offset) const;

  std::vector<Variables> scopes_;
  std::vector<Text> outputs_;  // the last one is written to
  size_t max_output_bytes_;
  Budget budget_;
};

}  // namespace kvik::jinja
