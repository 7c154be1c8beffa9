// The syntax tree of a template.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/jinja/value.h"

namespace kvik::jinja {

// Nesting of expressions and of statements. Keeps recursion over the tree within any stack.
inline constexpr int kMaxDepth = 100;

enum class Filter : uint8_t {
  default_,
  first,
  items,
  join,
  last,
  length,
  list,
  lower,
  reject,
  replace,
  select,
  string,
  tojson,
  trim,
  upper
};
enum class Test : uint8_t {
  boolean,
  defined,
  false_,
  integer,
  iterable,
  mapping,
  none,
  number,
  sequence,
  string,
  true_,
  undefined
};
enum class Method : uint8_t {
  endswith,
  get,
  items,
  keys,
  lower,
  lstrip,
  replace,
  rstrip,
  split,
  startswith,
  strip,
  upper,
  values
};
enum class BinaryOp : uint8_t { add, subtract, multiply, floor_divide, modulo };
enum class CompareOp : uint8_t { eq, ne, lt, le, gt, ge, in, not_in };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind : uint8_t {
    literal,      // value
    list,         // args
    dict,         // args: key, value, key, value, ...
    name,         // name
    attribute,    // args[0] . name
    index,        // args[0] [ args[1] ]
    slice,        // args[0] [ args[1] : args[2] : args[3] ], absent ones null
    call,         // name ( args, named )
    method,       // args[0] . method ( args[1..] )
    filter,       // args[0] | filter ( args[1..], named )
    test,         // args[0] is test; negated
    not_,         // args[0]
    minus,        // args[0]
    plus,         // args[0]
    binary,       // args[0] binary args[1]
    concat,       // args[0] ~ args[1] ~ ...
    compare,      // args[0] compares[0] args[1] compares[1] args[2] ...
    and_,         // args[0], args[1]
    or_,          // args[0], args[1]
    conditional,  // args[0] if args[1] else args[2] (may be null)
  };

  Kind kind;
  size_t offset;  // in the source
  int depth = 1;
  Value value;
  std::string name;
  Filter filter{};
  Test test{};
  Method method{};
  BinaryOp binary{};
  bool negated = false;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<CompareOp> compares;
};

struct Stmt;
using Block = std::vector<Stmt>;

struct Stmt {
  enum class Kind : uint8_t {
    data,       // data
    print,      // expr
    if_,        // branches, else_body
    for_,       // targets in expr, filter; body, else_body
    set,        // targets[0] = expr
    set_attr,   // targets[0] . attribute = expr
    set_block,  // targets[0] = what body prints
  };
  struct Branch {
    ExprPtr condition;
    Block body;
  };

  Kind kind;
  size_t offset;
  Text data{};
  ExprPtr expr{};
  ExprPtr filter{};
  std::vector<std::string> targets{};
  std::string attribute{};
  std::vector<Branch> branches{};
  Block body{};
  Block else_body{};
};

}  // namespace kvik::jinja
