// The syntax tree of a template.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/jinja/value.h"

namespace kvik::jinja {

// Nesting of expressions and of statements. Keeps recursion over the tree within any stack.
inline constexpr int kMaxDepth = 100;

enum class BinaryOp : uint8_t { add, subtract, multiply, divide, floor_divide, modulo, power };
enum class CompareOp : uint8_t { eq, ne, lt, le, gt, ge, in, not_in };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind : uint8_t {
    literal,      // value
    list,         // args
    tuple,        // args
    dict,         // args: key, value, key, value, ...
    name,         // name
    attribute,    // args[0] . name
    index,        // args[0] [ args[1] ]
    slice,        // args[0] [ args[1] : args[2] : args[3] ], absent ones null
    call,         // args[0] ( arguments )
    filter,       // args[0] | name ( arguments ); args[0] is null in a filter of a block
    test,         // args[0] is name ( arguments ); negated
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
  Value value{};
  std::string name{};
  BinaryOp binary{};
  bool negated = false;
  std::vector<ExprPtr> args{};  // arguments of a call, filter or test: args[1..] and the next three
  std::vector<std::pair<std::string, ExprPtr>> named{};
  ExprPtr more_args{}, more_named{};  // after * and **
  std::vector<CompareOp> compares{};
};

struct Stmt;
using Block = std::vector<Stmt>;

// What an assignment writes to: a variable, an attribute of a namespace, or several of them.
struct Target {
  std::string name{};
  std::string attribute{};
  std::vector<Target> parts{};
  bool is_tuple = false;
};

// A macro, or the body of a call block.
struct MacroCode {
  std::string name;
  std::vector<std::string> params;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Block body;
  bool is_caller = false;  // the body of a call block
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Stmt {
  enum class Kind : uint8_t {
    data,       // data
    print,      // expr
    if_,        // branches, else_body
    for_,       // target in expr, filter, recursive; body, else_body
    set,        // target = expr
    set_block,  // target = what body prints, through expr if there is one
    with,       // targets = exprs; body
    filter,     // what body prints, through expr
    macro,      // macro
    call,       // expr, with macro as caller
    scope,      // body, at_top
    break_,
    continue_,
    unsupported,  // data: its name
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
  bool recursive = false;
  bool at_top = false;  // sees the variables of the template's top level only
  Target target{};
  std::vector<std::pair<Target, ExprPtr>> with{};
  std::vector<Branch> branches{};
  Block body{};
  Block else_body{};
  std::unique_ptr<MacroCode> macro{};
};

}  // namespace kvik::jinja
