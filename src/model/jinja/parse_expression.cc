// Parser: expressions.
#include <charconv>

#include "model/jinja/numbers.h"
#include "model/jinja/parser.h"

namespace kvik::jinja {
namespace {

template <class... Args>
std::vector<ExprPtr> pack(Args... args) {
  std::vector<ExprPtr> result;
  (result.push_back(std::move(args)), ...);
  return result;
}

}  // namespace

bool Parser::at_end_of_tuple(bool in_brackets) const {
  return here().kind == TokenKind::block_end || here().kind == TokenKind::print_end ||
         here().kind == TokenKind::end || at_op(")") || (!in_brackets && at_name("recursive"));
}

ExprPtr Parser::parse_tuple(bool conditionals) {
  return parse_tuple_items(conditionals, false, here().offset);
}

ExprPtr Parser::parse_tuple_items(bool conditionals, bool in_brackets, size_t offset) {
  std::vector<ExprPtr> items;
  bool tuple = false;
  while (!at_end_of_tuple(in_brackets)) {
    items.push_back(conditionals ? parse_expression() : parse_or());
    if (!accept_op(",")) break;
    tuple = true;
  }
  if (!tuple && items.size() == 1) return std::move(items[0]);
  if (items.empty() && !in_brackets) fail_here("an expression");
  return node(Expr::Kind::tuple, offset, std::move(items));
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
  std::vector<CompareOp> compares;
  std::vector<ExprPtr> args = pack(parse_sum());
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
  ExprPtr left = parse_power();
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    const Token op = next();
    ExprPtr right = parse_power();
    left = node(Expr::Kind::binary, op.offset, pack(std::move(left), std::move(right)));
    left->binary = op.value == "*"    ? BinaryOp::multiply
                   : op.value == "/"  ? BinaryOp::divide
                   : op.value == "//" ? BinaryOp::floor_divide
                                      : BinaryOp::modulo;
  }
  return left;
}

// From the left, unlike Python.
ExprPtr Parser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (at_op("**")) {
    const size_t offset = next().offset;
    ExprPtr right = parse_unary(true);
    left = node(Expr::Kind::binary, offset, pack(std::move(left), std::move(right)));
    left->binary = BinaryOp::power;
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
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filters ? parse_filters(std::move(expr)) : std::move(expr);
}

ExprPtr Parser::parse_number() {
  const Token token = next();
  ExprPtr expr = node(Expr::Kind::literal, token.offset);
  if (token.kind == TokenKind::real) {
    // Beyond the range of doubles it is infinite, as in Python.
    const double number = parse_float(token.value).value_or(0);
    expr->value = Value(number);
    return expr;
  }
  std::string_view digits = token.value;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && digits[1] >= 'a') {
    base = digits[1] == 'x' ? 16 : digits[1] == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  int64_t integer = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), integer, base).ec !=
      std::errc()) {
    refuse("an integer beyond 64 bits is not supported", token.offset);
  }
  expr->value = Value(integer);
  return expr;
}

ExprPtr Parser::parse_name() {
  const Token token = next();
  const std::string& name = token.value;
  ExprPtr expr = node(Expr::Kind::literal, token.offset);
  if (name == "true" || name == "True") {
    expr->value = Value(true);
  } else if (name == "false" || name == "False") {
    expr->value = Value(false);
  } else if (name == "none" || name == "None") {
    expr->value = Value(None{});
  } else {
    expr->kind = Expr::Kind::name;
    expr->name = name;
    for (MacroCode* macro : macros_) {
      macro->uses_caller |= name == "caller";
      macro->uses_varargs |= name == "varargs";
      macro->uses_kwargs |= name == "kwargs";
    }
  }
  return expr;
}

ExprPtr Parser::parse_primary() {
  const Token& token = here();
  const size_t offset = token.offset;
  if (token.kind == TokenKind::name) return parse_name();
  if (token.kind == TokenKind::integer || token.kind == TokenKind::real) return parse_number();
  if (token.kind == TokenKind::string) {
    std::string joined;  // neighbouring strings are one
    while (here().kind == TokenKind::string) joined += next().value;
    ExprPtr expr = node(Expr::Kind::literal, offset);
    expr->value = Value(Text(std::move(joined), true));
    return expr;
  }
  if (accept_op("(")) {
    ExprPtr expr = parse_tuple_items(true, true, offset);
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
      expr = parse_dot(std::move(expr));
    } else if (at_op("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (at_op("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_dot(ExprPtr expr) {
  next();
  const size_t offset = here().offset;
  if (here().kind == TokenKind::integer) {
    return node(Expr::Kind::index, offset, pack(std::move(expr), parse_number()));
  }
  expr = node(Expr::Kind::attribute, offset, pack(std::move(expr)));
  expr->name = expect_any_name("the name of an attribute");
  return expr;
}

// One subscript; if it is a slice, its three parts go to `parts` and nullptr is returned.
ExprPtr Parser::parse_subscribed(ExprPtr* parts) {
  const auto at_part_end = [this] { return at_op(":") || at_op("]") || at_op(","); };
  if (!at_op(":")) parts[0] = parse_expression();
  if (!accept_op(":")) return std::move(parts[0]);
  if (!at_part_end()) parts[1] = parse_expression();
  if (accept_op(":") && !at_part_end()) parts[2] = parse_expression();
  return nullptr;
}

ExprPtr Parser::parse_subscript(ExprPtr object) {
  const size_t offset = next().offset;
  std::vector<ExprPtr> subscripts;
  bool tuple = false;
  while (!accept_op("]")) {
    if (!subscripts.empty()) {
      tuple = true;
      expect_op(",");
    }
    ExprPtr parts[3];
    ExprPtr subscript = parse_subscribed(parts);
    if (subscript == nullptr) {
      if (tuple || !at_op("]")) fail("a slice beside other subscripts", offset);
      next();
      return node(
          Expr::Kind::slice, offset,
          pack(std::move(object), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])));
    }
    subscripts.push_back(std::move(subscript));
  }
  if (subscripts.empty()) fail("an empty subscript", offset);
  ExprPtr index =
      tuple ? node(Expr::Kind::tuple, offset, std::move(subscripts)) : std::move(subscripts[0]);
  return node(Expr::Kind::index, offset, pack(std::move(object), std::move(index)));
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
    const size_t offset = here().offset;
    if (at_op("*") || at_op("**")) {
      ExprPtr& more = next().value == "*" ? call.more_args : call.more_named;
      if (more != nullptr || call.more_named != nullptr) fail("an argument after \"**\"", offset);
      more = parse_expression();
    } else if (here().kind == TokenKind::name && ahead().kind == TokenKind::op &&
               ahead().value == "=") {
      if (call.more_named != nullptr) fail("an argument after \"**\"", offset);
      std::string name = next().value;
      next();
      call.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!call.named.empty() || call.more_args != nullptr || call.more_named != nullptr) {
        fail("a plain argument after a named one", offset);
      }
      call.args.push_back(parse_expression());
    }
  }
  update_depth(call);
}

ExprPtr Parser::parse_call(ExprPtr callee) {
  const size_t offset = callee->offset;
  ExprPtr expr = node(Expr::Kind::call, offset, pack(std::move(callee)));
  parse_arguments(*expr);
  return expr;
}

ExprPtr Parser::parse_filters(ExprPtr expr) {
  while (true) {
    if (accept_op("|")) {
      expr = parse_filter(std::move(expr));
    } else if (at_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (at_op("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

std::string Parser::parse_dotted_name(const char* what) {
  std::string name = expect_any_name(what);
  while (accept_op(".")) name += "." + expect_any_name(what);
  return name;
}

ExprPtr Parser::parse_filter(ExprPtr value) {
  const size_t offset = here().offset;
  ExprPtr expr = node(Expr::Kind::filter, offset, pack(std::move(value)));
  expr->name = parse_dotted_name("the name of a filter");
  if (at_op("(")) parse_arguments(*expr);
  return expr;
}

ExprPtr Parser::parse_test(ExprPtr value) {
  next();
  const bool negated = accept_name("not");
  ExprPtr expr = node(Expr::Kind::test, here().offset, pack(std::move(value)));
  expr->name = parse_dotted_name("the name of a test");
  expr->negated = negated;
  if (at_op("(")) {
    parse_arguments(*expr);
    return expr;
  }
  // Any value that follows is an argument of the test.
  const TokenKind kind = here().kind;
  const bool value_follows =
      kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::real ||
      at_op("[") || at_op("{") ||
      (kind == TokenKind::name && !at_name("else") && !at_name("and") && !at_name("or"));
  if (value_follows) {
    if (at_name("is")) fail("tests cannot be chained with \"is\"", here().offset);
    expr->args.push_back(parse_postfix(parse_primary()));
    update_depth(*expr);
  }
  return expr;
}

}  // namespace kvik::jinja
