// Parser: tokens and statements.
#include "model/jinja/parser.h"

namespace kvik::jinja {

namespace {

bool assigns_loop(const Target& target) {
  if (target.name == "loop" && target.attribute.empty()) return true;
  return std::any_of(target.parts.begin(), target.parts.end(), assigns_loop);
}

}  // namespace

Token Parser::next() {
  Token token = here();
  if (token.kind != TokenKind::end) ++pos_;
  return token;
}

bool Parser::accept_op(std::string_view op) {
  if (!at_op(op)) return false;
  ++pos_;
  return true;
}

bool Parser::accept_name(std::string_view name) {
  if (!at_name(name)) return false;
  ++pos_;
  return true;
}

void Parser::expect_op(std::string_view op) {
  if (!accept_op(op)) fail_here("\"" + std::string(op) + "\"");
}

std::string Parser::expect_any_name(const char* what) {
  if (here().kind != TokenKind::name) fail_here(what);
  return next().value;
}

void Parser::expect(TokenKind kind, const char* what) {
  if (here().kind != kind) fail_here(what);
  next();
}

void Parser::fail_here(const std::string& expected) const {
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

ExprPtr Parser::node(Expr::Kind kind, size_t offset, std::vector<ExprPtr> args) {
  auto expr = std::make_unique<Expr>(Expr{.kind = kind, .offset = offset});
  expr->args = std::move(args);
  update_depth(*expr);
  return expr;
}

void Parser::update_depth(Expr& expr) {
  const auto include = [&expr](const ExprPtr& arg) {
    if (arg != nullptr) expr.depth = std::max(expr.depth, arg->depth + 1);
  };
  for (const ExprPtr& arg : expr.args) include(arg);
  for (const auto& item : expr.named) include(item.second);
  include(expr.more_args);
  include(expr.more_named);
  if (expr.depth > kMaxDepth) {
    refuse("an expression nested deeper than " + std::to_string(kMaxDepth), expr.offset);
  }
}

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
    stmt.expr = parse_tuple(true);
    expect(TokenKind::print_end, "the end of the tag");
    return stmt;
  }
  const size_t offset = here().offset;
  return parse_tag(expect_any_name("the name of a tag"), offset);
}

Stmt Parser::parse_tag(const std::string& tag, size_t offset) {
  if (tag == "if") return parse_if(offset);
  if (tag == "for") return parse_for(offset);
  if (tag == "set") return parse_set(offset);
  if (tag == "with") return parse_with(offset);
  if (tag == "macro") return parse_macro(offset);
  if (tag == "call") return parse_call_block(offset);
  if (tag == "filter") return parse_filter_block(offset);
  if (tag == "generation") return parse_generation(offset);
  if (tag == "block") return parse_block_tag(offset);
  if (tag == "break" || tag == "continue") {
    if (loops_ == 0) fail("\"" + tag + "\" outside of a loop", offset);
    expect_block_end();
    return {.kind = tag == "break" ? Stmt::Kind::break_ : Stmt::Kind::continue_, .offset = offset};
  }
  if (tag == "print") {
    Stmt stmt{.kind = Stmt::Kind::print, .offset = offset};
    // Several expressions are printed one after the other.
    std::vector<ExprPtr> parts;
    do {
      parts.push_back(parse_expression());
    } while (accept_op(","));
    stmt.expr = node(Expr::Kind::concat, offset, std::move(parts));
    expect_block_end();
    return stmt;
  }
  for (const char* known : {"autoescape", "extends", "from", "import", "include"}) {
    if (tag == known) return parse_unsupported(tag, offset);
  }
  if (tag.substr(0, 3) == "end" || tag == "else" || tag == "elif") {
    fail("\"" + tag + "\" closes nothing", offset);
  }
  fail("the tag \"" + tag + "\" is unknown", offset);
}

Stmt Parser::parse_if(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::if_, .offset = offset};
  while (true) {
    Stmt::Branch branch;
    branch.condition = parse_tuple(false);
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

void Parser::expect_end_tag(std::string_view name) {
  expect(TokenKind::block_begin, "an end tag");
  if (!accept_name(name)) fail_here("\"" + std::string(name) + "\"");
  expect_block_end();
}

Target Parser::parse_target_part(bool attributes) {
  const Nesting nesting(*this);
  if (accept_op("(")) {
    Target target;
    while (!accept_op(")")) {
      if (!target.parts.empty() || target.is_tuple) {
        expect_op(",");
        target.is_tuple = true;
        if (accept_op(")")) break;
      }
      target.parts.push_back(parse_target_part(attributes));
      if (!at_op(",")) {
        expect_op(")");
        break;
      }
      target.is_tuple = true;
    }
    if (target.parts.empty()) fail_here("a variable name");
    if (target.is_tuple) return target;
    return std::move(target.parts[0]);
  }
  const size_t offset = here().offset;
  Target target{.name = expect_any_name("a variable name")};
  for (const char* reserved : {"true", "True", "false", "False", "none", "None"}) {
    if (target.name == reserved) fail("\"" + target.name + "\" cannot be assigned to", offset);
  }
  if (attributes && accept_op(".")) target.attribute = expect_any_name("the name of an attribute");
  return target;
}

Target Parser::parse_target(bool in_for, bool attributes) {
  Target first = parse_target_part(attributes);
  if (!at_op(",")) return first;
  Target tuple{.is_tuple = true};
  tuple.parts.push_back(std::move(first));
  while (accept_op(",")) {
    if (in_for && at_name("in")) break;
    tuple.parts.push_back(parse_target_part(attributes));
  }
  return tuple;
}

Stmt Parser::parse_for(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::for_, .offset = offset};
  stmt.target = parse_target(true, false);
  if (assigns_loop(stmt.target)) fail("\"loop\" cannot be assigned to", offset);
  if (!accept_name("in")) fail_here("\"in\"");
  stmt.expr = parse_tuple(false);
  if (accept_name("if")) stmt.filter = parse_expression();
  stmt.recursive = accept_name("recursive");
  expect_block_end();
  ++fors_;
  ++loops_;
  stmt.body = parse_block({"endfor", "else"});
  --loops_;
  if (ahead().value == "else") {
    next();
    next();
    expect_block_end();
    stmt.else_body = parse_block({"endfor"});
  }
  --fors_;
  expect_end_tag("endfor");
  return stmt;
}

Stmt Parser::parse_set(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::set, .offset = offset};
  stmt.target = parse_target(false, true);
  if (fors_ > 0 && assigns_loop(stmt.target)) {
    fail("\"loop\" cannot be assigned to inside of a loop", offset);
  }
  if (accept_op("=")) {
    stmt.expr = parse_tuple(true);
    expect_block_end();
    return stmt;
  }
  stmt.kind = Stmt::Kind::set_block;
  while (accept_op("|")) stmt.expr = parse_filter(std::move(stmt.expr));
  expect_block_end();
  stmt.body = parse_block({"endset"});
  expect_end_tag("endset");
  return stmt;
}

Stmt Parser::parse_with(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::with, .offset = offset};
  while (here().kind != TokenKind::block_end) {
    if (!stmt.with.empty()) expect_op(",");
    Target target = parse_target_part(false);
    expect_op("=");
    stmt.with.emplace_back(std::move(target), parse_expression());
  }
  expect_block_end();
  stmt.body = parse_block({"endwith"});
  expect_end_tag("endwith");
  return stmt;
}

void Parser::parse_signature(MacroCode& macro) {
  expect_op("(");
  while (!accept_op(")")) {
    if (!macro.params.empty()) expect_op(",");
    const size_t offset = here().offset;
    if (at_op("(")) fail_here("the name of a parameter");
    std::string param = parse_target_part(false).name;
    if (std::find(macro.params.begin(), macro.params.end(), param) != macro.params.end()) {
      fail("the parameter \"" + param + "\" is named twice", offset);
    }
    macro.params.push_back(std::move(param));
    if (accept_op("=")) {
      macro.defaults.push_back(parse_expression());
    } else if (!macro.defaults.empty()) {
      fail("a parameter without a default after one with a default", here().offset);
    }
  }
}

void Parser::parse_macro_body(MacroCode& macro, std::string_view end) {
  macros_.push_back(&macro);
  macro.body = parse_closed_block(end);
  macros_.pop_back();
  const auto caller = std::find(macro.params.begin(), macro.params.end(), "caller");
  const auto first_default = macro.params.end() - static_cast<ptrdiff_t>(macro.defaults.size());
  if (macro.uses_caller && caller < first_default) {
    fail("the parameter \"caller\" of a macro or call block needs a default, or is left out",
         here().offset);
  }
  expect_end_tag(end);
}

Stmt Parser::parse_macro(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::macro, .offset = offset};
  stmt.macro = std::make_unique<MacroCode>();
  if (at_op("(")) fail_here("the name of a macro");
  stmt.macro->name = parse_target_part(false).name;
  parse_signature(*stmt.macro);
  expect_block_end();
  parse_macro_body(*stmt.macro, "endmacro");
  return stmt;
}

Stmt Parser::parse_call_block(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::call, .offset = offset};
  stmt.macro = std::make_unique<MacroCode>();
  stmt.macro->name = "caller";
  stmt.macro->is_caller = true;
  if (at_op("(")) parse_signature(*stmt.macro);
  stmt.expr = parse_expression();
  if (stmt.expr->kind != Expr::Kind::call) fail("\"call\" needs a call", offset);
  expect_block_end();
  parse_macro_body(*stmt.macro, "endcall");
  return stmt;
}

Stmt Parser::parse_filter_block(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::filter, .offset = offset};
  stmt.expr = parse_filter(nullptr);
  while (accept_op("|")) stmt.expr = parse_filter(std::move(stmt.expr));
  expect_block_end();
  stmt.body = parse_block({"endfilter"});
  expect_end_tag("endfilter");
  return stmt;
}

Block Parser::parse_closed_block(std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  Block block = parse_block({end});
  loops_ = loops;
  return block;
}

// Nothing replaces a block here: it prints its body, which sees variables of the template's top
// level only, unless it is "scoped".
Stmt Parser::parse_block_tag(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::scope, .offset = offset};
  const size_t name_offset = here().offset;
  const std::string name = expect_any_name("the name of a block");
  if (std::find(block_names_.begin(), block_names_.end(), name) != block_names_.end()) {
    fail("the block \"" + name + "\" is defined twice", name_offset);
  }
  block_names_.push_back(name);
  stmt.at_top = !accept_name("scoped");
  if (at_name("required")) refuse("\"required\" is not supported", here().offset);
  expect_block_end();
  stmt.body = parse_closed_block("endblock");
  expect(TokenKind::block_begin, "an end tag");
  next();
  accept_name(name);
  expect_block_end();
  return stmt;
}

// Marks what an assistant wrote, for training; a prompt is the same without.
Stmt Parser::parse_generation(size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::scope, .offset = offset};
  expect_block_end();
  stmt.body = parse_closed_block("endgeneration");
  expect_end_tag("endgeneration");
  return stmt;
}

// Reads over the tag; whoever reaches it at rendering is refused.
Stmt Parser::parse_unsupported(const std::string& tag, size_t offset) {
  Stmt stmt{.kind = Stmt::Kind::unsupported, .offset = offset};
  stmt.data = Text(tag, true);
  while (here().kind != TokenKind::block_end && here().kind != TokenKind::end) next();
  expect_block_end();
  if (tag != "autoescape") return stmt;
  stmt.body = parse_block({"endautoescape"});
  expect_end_tag("endautoescape");
  return stmt;
}

Block parse(std::string_view source) { return Parser(tokenise(source)).run(); }

}  // namespace kvik::jinja
