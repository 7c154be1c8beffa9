#include "model/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "model/jinja/error.h"
#include "model/jinja/lexer.h"
#include "model/jinja/names.h"

namespace kvik::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block run() {
    Block block = parse_block({});
    return block;
  }

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
  Token next() {
    Token token = here();
    if (token.kind != TokenKind::end) ++pos_;
    return token;
  }
  bool at_op(std::string_view op) const {
    return here().kind == TokenKind::op && here().value == op;
  }
  bool at_name(std::string_view name) const {
    return here().kind == TokenKind::name && here().value == name;
  }
  bool accept_op(std::string_view op) {
    if (!at_op(op)) return false;
    ++pos_;
    return true;
  }
  bool accept_name(std::string_view name) {
    if (!at_name(name)) return false;
    ++pos_;
    return true;
  }
  void expect_op(std::string_view op) {
    if (!accept_op(op)) fail_here("\"" + std::string(op) + "\"");
  }
  std::string expect_any_name(const char* what) {
    if (here().kind != TokenKind::name) fail_here(what);
    return next().value;
  }
  void expect(TokenKind kind, const char* what) {
    if (here().kind != kind) fail_here(what);
    next();
  }
  [[noreturn]] void fail_here(const std::string& expected) const {
    std::string found;
    switch (here().kind) {
      case TokenKind::end:
        found = "the end of the template";
        break;
      case TokenKind::block_end:
      case TokenKind::print_end:
        found = "the end of the tag";
        break;
      case TokenKind::string:
        found = "a string";
        break;
      default:
        found = "\"" + here().value + "\"";
    }
    fail("expected " + expected + ", found " + found, here().offset);
  }

  // A new node over `args`. Left-associative chains nest without recursion in the parser, so the
  // depth of the tree is limited here.
  ExprPtr node(Expr::Kind kind, size_t offset, std::vector<ExprPtr> args = {}) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->offset = offset;
    expr->args = std::move(args);
    update_depth(*expr);
    return expr;
  }
  static void update_depth(Expr& expr) {
    for (const ExprPtr& arg : expr.args) {
      if (arg != nullptr) expr.depth = std::max(expr.depth, arg->depth + 1);
    }
    for (const auto& item : expr.named) expr.depth = std::max(expr.depth, item.second->depth + 1);
    if (expr.depth > kMaxDepth) {
      refuse("an expression nested deeper than " + std::to_string(kMaxDepth), expr.offset);
    }
  }
  template <class... Args>
  static std::vector<ExprPtr> pack(Args... args) {
    std::vector<ExprPtr> result;
    (result.push_back(std::move(args)), ...);
    return result;
  }

  // --- statements ---

  Block parse_block(std::initializer_list<std::string_view> ends);
  Stmt parse_statement();
  Stmt parse_if(size_t offset);
  Stmt parse_for(size_t offset);
  Stmt parse_set(size_t offset);
  // "endif" and the like, with the end of its tag.
  void expect_end_tag(std::string_view name) {
    expect(TokenKind::block_begin, "an end tag");
    if (!accept_name(name)) fail_here("\"" + std::string(name) + "\"");
    expect_block_end();
  }
  void expect_block_end() {
    if (at_op(",")) refuse("a tuple is not supported", here().offset);
    expect(TokenKind::block_end, "the end of the tag");
  }
  std::string parse_target();

  // --- expressions, weakest binding first ---

  ExprPtr parse_expression();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr expr);
  ExprPtr parse_method(ExprPtr object, const Token& name);
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_filters(ExprPtr expr);
  ExprPtr parse_filter(ExprPtr expr);
  void check_select(const Expr& expr) const;
  ExprPtr parse_test(ExprPtr expr);
  void parse_arguments(Expr& call);
  static void check_arguments(const Expr& call, const std::string& what, Arity arity,
                              std::initializer_list<std::string_view> names);
  std::optional<CompareOp> accept_compare();

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0;
};

Block Parser::parse_block(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  Block block;
  while (here().kind != TokenKind::end) {
    if (here().kind == TokenKind::block_begin && ahead().kind == TokenKind::name &&
        std::find(ends.begin(), ends.end(), ahead().value) != ends.end()) {
      return block;
    }
    block.push_back(parse_statement());
  }
  if (ends.size() > 0) fail_here("\"" + std::string(ends.begin()[0]) + "\"");
  return block;
}

Stmt Parser::parse_statement() {
  const Token begin = next();
  if (begin.kind == TokenKind::data) {
    Stmt stmt{.kind = Stmt::Kind::data, .offset = begin.offset};
    stmt.data = Text(begin.value, true);
    return stmt;
  }
  if (begin.kind == TokenKind::print_begin) {
    Stmt stmt{.kind = Stmt::Kind::print, .offset = begin.offset};
    stmt.expr = parse_expression();
    if (at_op(",")) refuse("a tuple is not supported", here().offset);
    expect(TokenKind::print_end, "the end of the tag");
    return stmt;
  }
  const size_t offset = here().offset;
  const std::string tag = expect_any_name("the name of a tag");
  if (tag == "if") return parse_if(offset);
  if (tag == "for") return parse_for(offset);
  if (tag == "set") return parse_set(offset);
  if (tag.substr(0, 3) == "end" || tag == "else" || tag == "elif") {
    fail("\"" + tag + "\" closes nothing", offset);
  }
  refuse("the tag \"" + tag + "\" is not supported", offset);
}

Stmt Parser::parse_if(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::if_, .offset = offset};
  while (true) {
    Stmt::Branch branch;
    branch.condition = parse_or();
    expect_block_end();
    branch.body = parse_block({"endif", "elif", "else"});
    stmt.branches.push_back(std::move(branch));
    if (ahead().value != "elif") break;
    next();
    next();
  }
  if (ahead().value == "else") {
    next();
    next();
    expect_block_end();
    stmt.else_body = parse_block({"endif"});
  }
  expect_end_tag("endif");
  return stmt;
}

std::string Parser::parse_target() {
  const size_t offset = here().offset;
  if (at_op("(")) refuse("a target in brackets is not supported", offset);
  std::string name = expect_any_name("a variable name");
  for (const char* reserved : {"true", "True", "false", "False", "none", "None", "loop", "self"}) {
    if (name == reserved) fail("\"" + name + "\" cannot be assigned to", offset);
  }
  return name;
}

Stmt Parser::parse_for(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::for_, .offset = offset};
  stmt.targets.push_back(parse_target());
  if (accept_op(",")) stmt.targets.push_back(parse_target());
  if (at_op(",")) refuse("a loop over more than two targets is not supported", here().offset);
  if (!accept_name("in")) fail_here("\"in\"");
  stmt.expr = parse_or();
  if (accept_name("if")) stmt.filter = parse_expression();
  if (at_name("recursive")) refuse("\"recursive\" is not supported", here().offset);
  expect_block_end();
  stmt.body = parse_block({"endfor", "else"});
  if (ahead().value == "else") {
    next();
    next();
    expect_block_end();
    stmt.else_body = parse_block({"endfor"});
  }
  expect_end_tag("endfor");
  return stmt;
}

Stmt Parser::parse_set(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::set, .offset = offset};
  stmt.targets.push_back(parse_target());
  if (accept_op(".")) {
    stmt.kind = Stmt::Kind::set_attr;
    stmt.attribute = expect_any_name("the name of an attribute");
  }
  if (at_op(",")) refuse("a tuple is not supported", here().offset);
  if (accept_op("=")) {
    stmt.expr = parse_expression();
    expect_block_end();
    return stmt;
  }
  if (at_op("|")) refuse("a filter on a block of \"set\" is not supported", here().offset);
  if (stmt.kind == Stmt::Kind::set_attr) {
    refuse("a block that sets an attribute is not supported", offset);
  }
  stmt.kind = Stmt::Kind::set_block;
  expect_block_end();
  stmt.body = parse_block({"endset"});
  expect_end_tag("endset");
  return stmt;
}

ExprPtr Parser::parse_expression() {
  const Nesting nesting(*this);
  ExprPtr expr = parse_or();
  while (at_name("if")) {
    const size_t offset = next().offset;
    ExprPtr condition = parse_or();
    ExprPtr otherwise = accept_name("else") ? parse_expression() : nullptr;
    expr = node(Expr::Kind::conditional, offset,
                pack(std::move(expr), std::move(condition), std::move(otherwise)));
  }
  return expr;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (at_name("or")) {
    const size_t offset = next().offset;
    ExprPtr right = parse_and();
    left = node(Expr::Kind::or_, offset, pack(std::move(left), std::move(right)));
  }
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (at_name("and")) {
    const size_t offset = next().offset;
    ExprPtr right = parse_not();
    left = node(Expr::Kind::and_, offset, pack(std::move(left), std::move(right)));
  }
  return left;
}

ExprPtr Parser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Nesting nesting(*this);
  const size_t offset = next().offset;
  return node(Expr::Kind::not_, offset, pack(parse_not()));
}

std::optional<CompareOp> Parser::accept_compare() {
  struct Entry {
    const char* op;
    CompareOp compare;
  };
  static constexpr Entry kOps[] = {{"==", CompareOp::eq}, {"!=", CompareOp::ne},
                                   {"<", CompareOp::lt},  {"<=", CompareOp::le},
                                   {">", CompareOp::gt},  {">=", CompareOp::ge}};
  for (const Entry& entry : kOps) {
    if (accept_op(entry.op)) return entry.compare;
  }
  if (accept_name("in")) return CompareOp::in;
  if (at_name("not") && ahead().kind == TokenKind::name && ahead().value == "in") {
    next();
    next();
    return CompareOp::not_in;
  }
  return std::nullopt;
}

ExprPtr Parser::parse_compare() {
  const size_t offset = here().offset;
  ExprPtr first = parse_sum();
  std::vector<CompareOp> compares;
  std::vector<ExprPtr> args = pack(std::move(first));
  while (const std::optional<CompareOp> compare = accept_compare()) {
    compares.push_back(*compare);
    args.push_back(parse_sum());
  }
  if (compares.empty()) return std::move(args[0]);
  ExprPtr expr = node(Expr::Kind::compare, offset, std::move(args));
  expr->compares = std::move(compares);
  return expr;
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_op("+") || at_op("-")) {
    const Token op = next();
    ExprPtr right = parse_concat();
    left = node(Expr::Kind::binary, op.offset, pack(std::move(left), std::move(right)));
    left->binary = op.value == "+" ? BinaryOp::add : BinaryOp::subtract;
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  const size_t offset = here().offset;
  std::vector<ExprPtr> args = pack(parse_product());
  while (accept_op("~")) args.push_back(parse_product());
  if (args.size() == 1) return std::move(args[0]);
  return node(Expr::Kind::concat, offset, std::move(args));
}

ExprPtr Parser::parse_product() {
  ExprPtr left = parse_unary(true);
  while (here().kind == TokenKind::op) {
    const Token op = here();
    if (op.value == "/" || op.value == "**") {
      refuse("the operator \"" + op.value + "\" is not supported", op.offset);
    }
    if (op.value != "*" && op.value != "//" && op.value != "%") break;
    next();
    ExprPtr right = parse_unary(true);
    left = node(Expr::Kind::binary, op.offset, pack(std::move(left), std::move(right)));
    left->binary = op.value == "*"    ? BinaryOp::multiply
                   : op.value == "//" ? BinaryOp::floor_divide
                                      : BinaryOp::modulo;
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  ExprPtr expr;
  if (at_op("-") || at_op("+")) {
    const Token op = next();
    expr = node(op.value == "-" ? Expr::Kind::minus : Expr::Kind::plus, op.offset,
                pack(parse_unary(false)));
  } else {
    expr = parse_postfix(parse_primary());
  }
  return with_filters ? parse_filters(std::move(expr)) : std::move(expr);
}

ExprPtr Parser::parse_primary() {
  const Token token = here();
  const auto literal = [&](Value value) {
    ExprPtr expr = node(Expr::Kind::literal, token.offset);
    expr->value = std::move(value);
    return expr;
  };
  if (token.kind == TokenKind::string) {
    std::string joined;  // neighbouring strings are one
    while (here().kind == TokenKind::string) joined += next().value;
    return literal(Value(Text(std::move(joined), true)));
  }
  if (token.kind == TokenKind::integer) {
    int64_t integer = 0;
    const char* end = token.value.data() + token.value.size();
    if (std::from_chars(token.value.data(), end, integer).ec != std::errc()) {
      refuse("an integer beyond 64 bits is not supported", token.offset);
    }
    next();
    return literal(Value(integer));
  }
  if (token.kind == TokenKind::name) {
    next();
    if (token.value == "true" || token.value == "True") return literal(Value(true));
    if (token.value == "false" || token.value == "False") return literal(Value(false));
    if (token.value == "none" || token.value == "None") return literal(Value(None{}));
    if (token.value == "self" || token.value == "super") {
      refuse("\"" + token.value + "\" is not supported", token.offset);
    }
    ExprPtr expr = node(Expr::Kind::name, token.offset);
    expr->name = token.value;
    return expr;
  }
  if (accept_op("(")) {
    if (at_op(")")) refuse("a tuple is not supported", token.offset);
    ExprPtr expr = parse_expression();
    if (at_op(",")) refuse("a tuple is not supported", here().offset);
    expect_op(")");
    return expr;
  }
  if (at_op("[")) return parse_list();
  if (at_op("{")) return parse_dict();
  fail_here("an expression");
}

ExprPtr Parser::parse_list() {
  const size_t offset = next().offset;
  std::vector<ExprPtr> items;
  while (!accept_op("]")) {
    if (!items.empty()) {
      expect_op(",");
      if (accept_op("]")) break;
    }
    items.push_back(parse_expression());
  }
  return node(Expr::Kind::list, offset, std::move(items));
}

ExprPtr Parser::parse_dict() {
  const size_t offset = next().offset;
  std::vector<ExprPtr> items;
  while (!accept_op("}")) {
    if (!items.empty()) {
      expect_op(",");
      if (accept_op("}")) break;
    }
    items.push_back(parse_expression());
    expect_op(":");
    items.push_back(parse_expression());
  }
  return node(Expr::Kind::dict, offset, std::move(items));
}

ExprPtr Parser::parse_postfix(ExprPtr expr) {
  while (true) {
    if (at_op(".")) {
      next();
      const Token name = here();
      if (name.kind == TokenKind::integer) {
        refuse("a number after \".\" is not supported; write it in []", name.offset);
      }
      expect_any_name("the name of an attribute");
      if (at_op("(")) {
        expr = parse_method(std::move(expr), name);
      } else {
        expr = node(Expr::Kind::attribute, name.offset, pack(std::move(expr)));
        expr->name = name.value;
      }
    } else if (at_op("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (at_op("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_subscript(ExprPtr object) {
  const size_t offset = next().offset;
  std::vector<ExprPtr> args = pack(std::move(object));
  bool slice = false;
  for (int part = 0; part < 3; ++part) {
    const bool absent = at_op(":") || at_op("]");
    args.push_back(absent ? nullptr : parse_expression());
    if (!accept_op(":")) break;
    slice = true;
  }
  if (at_op(",")) refuse("a subscript with a comma is not supported", here().offset);
  expect_op("]");
  if (!slice) {
    if (args[1] == nullptr) fail("an empty subscript", offset);
    return node(Expr::Kind::index, offset, std::move(args));
  }
  args.resize(4);
  return node(Expr::Kind::slice, offset, std::move(args));
}

void Parser::parse_arguments(Expr& call) {
  expect_op("(");
  bool first = true;
  while (!accept_op(")")) {
    if (!first) {
      expect_op(",");
      if (accept_op(")")) break;
    }
    first = false;
    if (at_op("*") || at_op("**")) {
      refuse("unpacking arguments is not supported", here().offset);
    }
    if (here().kind == TokenKind::name && ahead().kind == TokenKind::op && ahead().value == "=") {
      std::string name = next().value;
      next();
      call.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!call.named.empty()) fail("a plain argument after a named one", here().offset);
      call.args.push_back(parse_expression());
    }
  }
  update_depth(call);
}

void Parser::check_arguments(const Expr& call, const std::string& what, Arity arity,
                             std::initializer_list<std::string_view> names) {
  const size_t count = call.args.size() - 1;  // the first is the value itself
  if (count < arity.min || count > arity.max) {
    refuse(what + " with " + std::to_string(count) + " arguments is not supported", call.offset);
  }
  for (const auto& item : call.named) {
    if (std::find(names.begin(), names.end(), item.first) == names.end()) {
      refuse(what + " with the argument \"" + item.first + "\" is not supported", call.offset);
    }
  }
}

ExprPtr Parser::parse_method(ExprPtr object, const Token& name) {
  const std::optional<Method> method = find_method(name.value);
  if (!method) refuse("the method \"" + name.value + "\" is not supported", name.offset);
  ExprPtr expr = node(Expr::Kind::method, name.offset, pack(std::move(object)));
  expr->method = *method;
  expr->name = name.value;
  parse_arguments(*expr);
  check_arguments(*expr, "the method \"" + name.value + "\"", arity(*method), {});
  return expr;
}

ExprPtr Parser::parse_call(ExprPtr callee) {
  if (callee->kind != Expr::Kind::name) {
    refuse("a call of something other than a named function is not supported", here().offset);
  }
  if (is_jinja_function(callee->name)) {
    refuse("the function \"" + callee->name + "\" is not supported", callee->offset);
  }
  ExprPtr expr = node(Expr::Kind::call, callee->offset);
  expr->name = callee->name;
  parse_arguments(*expr);
  return expr;
}

ExprPtr Parser::parse_filters(ExprPtr expr) {
  while (true) {
    if (at_op("|")) {
      expr = parse_filter(std::move(expr));
    } else if (at_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (at_op("(")) {
      refuse("a call of something other than a named function is not supported", here().offset);
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_filter(ExprPtr value) {
  next();
  const Token name = here();
  expect_any_name("the name of a filter");
  const std::optional<Filter> filter = find_filter(name.value);
  if (!filter || at_op(".")) {
    refuse("the filter \"" + name.value + "\" is not supported", name.offset);
  }
  ExprPtr expr = node(Expr::Kind::filter, name.offset, pack(std::move(value)));
  expr->filter = *filter;
  expr->name = name.value;
  if (at_op("(")) parse_arguments(*expr);
  const std::string what = "the filter \"" + name.value + "\"";
  if (*filter == Filter::tojson) {
    check_arguments(*expr, what, arity(*filter), {"indent"});
  } else {
    check_arguments(*expr, what, arity(*filter), {});
  }
  if (*filter == Filter::select || *filter == Filter::reject) check_select(*expr);
  return expr;
}

// "select" and "reject" give a generator, which behaves as a list only where it is used up at once.
void Parser::check_select(const Expr& expr) const {
  const Text* test = expr.args[1]->value.text();
  if (test == nullptr || (test->bytes() != "equalto" && test->bytes() != "==")) {
    refuse("the filter \"" + expr.name + "\" with a test other than \"equalto\" is not supported",
           expr.offset);
  }
  const std::string& next_filter = ahead().value;
  if (!at_op("|") || (next_filter != "join" && next_filter != "list" && next_filter != "first")) {
    refuse("the filter \"" + expr.name + "\" not followed by join, list or first is not supported",
           expr.offset);
  }
}

ExprPtr Parser::parse_test(ExprPtr value) {
  next();
  const bool negated = accept_name("not");
  const Token name = here();
  expect_any_name("the name of a test");
  const std::optional<Test> test = find_test(name.value);
  if (!test || at_op(".")) {
    refuse("the test \"" + name.value + "\" is not supported", name.offset);
  }
  // In Jinja any value that follows is an argument of the test.
  const bool value_follows =
      here().kind == TokenKind::string || here().kind == TokenKind::integer || at_op("(") ||
      at_op("[") || at_op("{") ||
      (here().kind == TokenKind::name && !at_name("else") && !at_name("and") && !at_name("or"));
  if (value_follows) {
    refuse("the test \"" + name.value + "\" with an argument is not supported", here().offset);
  }
  ExprPtr expr = node(Expr::Kind::test, name.offset, pack(std::move(value)));
  expr->test = *test;
  expr->negated = negated;
  return expr;
}

}  // namespace

Block parse(std::string_view source) { return Parser(tokenise(source)).run(); }

}  // namespace kvik::jinja
