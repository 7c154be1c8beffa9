// Tokens of a template into its syntax tree.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/error.h"
#include "model/jinja/lexer.h"

namespace kvik::jinja {

// Throws TemplateError for what is not Jinja. Filters, tests and functions are looked up when they
// are reached.
Block parse(std::string_view source);

// The grammar is that of Jinja 3.1, function for function where possible.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Block run() { return parse_block({}); }

 private:
  // Counts nesting of whatever recurses.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxDepth) {
        refuse("nesting deeper than " + std::to_string(kMaxDepth), parser_.here().offset);
      }
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  const Token& here() const { return tokens_[pos_]; }
  const Token& ahead() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  Token next();
  bool at_op(std::string_view op) const {
    return here().kind == TokenKind::op && here().value == op;
  }
  bool at_name(std::string_view name) const {
    return here().kind == TokenKind::name && here().value == name;
  }
  bool accept_op(std::string_view op);
  bool accept_name(std::string_view name);
  void expect_op(std::string_view op);
  std::string expect_any_name(const char* what);
  void expect(TokenKind kind, const char* what);
  [[noreturn]] void fail_here(const std::string& expected) const;

  // A new node over `args`. Left-associative chains nest without recursion in the parser, so the
  // depth of the tree is limited here.
  static ExprPtr node(Expr::Kind kind, size_t offset, std::vector<ExprPtr> args = {});
  static void update_depth(Expr& expr);

  // --- statements (parser.cc) ---

  Block parse_block(std::initializer_list<std::string_view> ends);
  Stmt parse_statement();
  Stmt parse_tag(const std::string& tag, size_t offset);
  Stmt parse_if(size_t offset);
  Stmt parse_for(size_t offset);
  Stmt parse_set(size_t offset);
  Stmt parse_with(size_t offset);
  Stmt parse_macro(size_t offset);
  Stmt parse_call_block(size_t offset);
  Stmt parse_filter_block(size_t offset);
  Stmt parse_generation(size_t offset);
  Stmt parse_block_tag(size_t offset);
  // A body that "break" and "continue" cannot leave.
  Block parse_closed_block(std::string_view end);
  Stmt parse_unsupported(const std::string& tag, size_t offset);
  void parse_signature(MacroCode& macro);
  // The body of a macro up to `end`, with what it uses of its call.
  void parse_macro_body(MacroCode& macro, std::string_view end);
  // "endif" and the like, with the end of its tag.
  void expect_end_tag(std::string_view name);
  void expect_block_end() { expect(TokenKind::block_end, "the end of the tag"); }
  // Of a loop (`in_for`), of "with", or of "set", where attributes are targets too.
  Target parse_target(bool in_for, bool attributes);
  Target parse_target_part(bool attributes);

  // --- expressions (parse_expression.cc), weakest binding first ---

  // One expression, or several with commas, which are a tuple.
  ExprPtr parse_tuple(bool conditionals);
  ExprPtr parse_tuple_items(bool conditionals, bool in_brackets, size_t offset);
  ExprPtr parse_expression();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_number();
  ExprPtr parse_name();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_dot(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr expr);
  ExprPtr parse_subscribed(ExprPtr* slice_parts);
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_filters(ExprPtr expr);
  // Requires: at the name. `value` is null for the filter of a block.
  ExprPtr parse_filter(ExprPtr value);
  ExprPtr parse_test(ExprPtr expr);
  std::string parse_dotted_name(const char* what);
  void parse_arguments(Expr& call);
  bool at_end_of_tuple(bool in_brackets) const;
  std::optional<CompareOp> accept_compare();

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0;
  std::vector<MacroCode*> macros_;  // those around this place
  int loops_ = 0;                   // that "break" could end here
  int fors_ = 0;                    // around this place, past macros too
  std::vector<std::string> block_names_;
};

}  // namespace kvik::jinja
