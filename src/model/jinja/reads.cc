#include "model/jinja/reads.h"

#include <map>

namespace kvik::jinja {
namespace {

// What a value may be, as bits.
using Kinds = unsigned;
constexpr Kinds kMessages = 1, kMessage = 2, kUnknown = 4;

class Finder {
 public:
  explicit Finder(const Block& block) {
    kinds_["messages"] = kMessages;
    // A variable may be assigned behind its first use in the text (loops): until nothing changes.
    do {
      changed_ = false;
      walk(block);
    } while (changed_);
  }
  Reads take() { return std::move(reads_); }

 private:
  void add(const std::string& name, Kinds kinds) {
    Kinds& known = kinds_[name];
    if ((known | kinds) == known) return;
    known |= kinds;
    changed_ = true;
  }

  void assign(const Target& target, Kinds kinds) {
    if (target.is_tuple) {
      for (const Target& part : target.parts) assign(part, kinds != 0 ? kUnknown : 0);
    } else {
      add(target.attribute.empty() ? target.name : target.name + "." + target.attribute, kinds);
    }
  }

  static Kinds item_of(Kinds kinds) {
    return ((kinds & kMessages) != 0 ? kMessage : 0) | (kinds & kUnknown);
  }

  // The value of this key of `kinds`.
  Kinds read(Kinds kinds, const std::string& key) {
    if ((kinds & (kMessage | kUnknown)) != 0) reads_.message_keys.insert(key);
    return kinds & kUnknown;
  }

  static const std::string* literal(const ExprPtr& expr) {
    if (expr == nullptr || expr->kind != Expr::Kind::literal) return nullptr;
    const Text* text = expr->value.text();
    return text != nullptr ? &text->bytes() : nullptr;
  }

  // --- statements ---

  void walk(const Block& block) {
    for (const Stmt& stmt : block) walk(stmt);
  }

  void walk(const Stmt& stmt) {
    const Kinds kinds = stmt.expr != nullptr ? look(*stmt.expr) : 0;
    if (stmt.kind == Stmt::Kind::for_) assign(stmt.target, item_of(kinds));
    if (stmt.kind == Stmt::Kind::set) {
      assign(stmt.target, kinds);
      note_namespace(stmt);
    }
    if (stmt.filter != nullptr) look(*stmt.filter);
    for (const auto& [target, expr] : stmt.with) assign(target, look(*expr));
    for (const Stmt::Branch& branch : stmt.branches) {
      look(*branch.condition);
      walk(branch.body);
    }
    if (stmt.macro != nullptr) {
      macros_[stmt.macro->name] = stmt.macro.get();
      for (const ExprPtr& expr : stmt.macro->defaults) look(*expr);
      if (stmt.kind == Stmt::Kind::call) {
        for (const std::string& param : stmt.macro->params) add(param, kUnknown);
      }
      walk(stmt.macro->body);
    }
    walk(stmt.body);
    walk(stmt.else_body);
  }

  // set ns = namespace(a=...)
  void note_namespace(const Stmt& stmt) {
    const Expr& expr = *stmt.expr;
    if (expr.kind != Expr::Kind::call || expr.args[0]->name != "namespace") return;
    for (const auto& [name, value] : expr.named) add(stmt.target.name + "." + name, look(*value));
  }

  // --- expressions ---

  Kinds look(const Expr& expr) {
    switch (expr.kind) {
      case Expr::Kind::literal:
        return 0;
      case Expr::Kind::name: {
        reads_.names.insert(expr.name);
        const auto found = kinds_.find(expr.name);
        return found != kinds_.end() ? found->second : 0;
      }
      case Expr::Kind::attribute:
        return look_attribute(expr);
      case Expr::Kind::index:
        return look_index(expr);
      case Expr::Kind::filter:
        return look_filter(expr);
      case Expr::Kind::call:
        return look_call(expr);
      case Expr::Kind::compare:
        return look_compare(expr);
      case Expr::Kind::list:
      case Expr::Kind::tuple: {
        const Kinds kinds = look_all(expr);
        return ((kinds & kMessage) != 0 ? kMessages : 0) | (kinds != 0 ? kUnknown : 0);
      }
      case Expr::Kind::dict:
        return look_all(expr) != 0 ? kUnknown : 0;
      case Expr::Kind::test:
      case Expr::Kind::not_:
      case Expr::Kind::concat:
        look_all(expr);
        return 0;
      default:  // or, and, a if b else c, +, a slice
        return look_all(expr);
    }
  }

  Kinds look_all(const Expr& expr) {
    Kinds kinds = 0;
    for (const ExprPtr& arg : expr.args) {
      if (arg != nullptr) kinds |= look(*arg);
    }
    for (const auto& item : expr.named) kinds |= look(*item.second);
    if (expr.more_args != nullptr) kinds |= look(*expr.more_args);
    if (expr.more_named != nullptr) kinds |= look(*expr.more_named);
    return kinds;
  }

  Kinds look_attribute(const Expr& expr) {
    const Expr& object = *expr.args[0];
    const Kinds kinds = look(object);
    if (object.kind == Expr::Kind::name) {
      if (object.name == "loop" && (expr.name == "previtem" || expr.name == "nextitem")) {
        return kMessage;
      }
      const auto found = kinds_.find(object.name + "." + expr.name);
      if (found != kinds_.end()) return found->second | read(kinds, expr.name);
    }
    return read(kinds, expr.name);
  }

  Kinds look_index(const Expr& expr) {
    const Kinds kinds = look(*expr.args[0]);
    look(*expr.args[1]);
    const std::string* key = literal(expr.args[1]);
    return key != nullptr ? read(kinds, *key) : item_of(kinds);
  }

  Kinds look_filter(const Expr& expr) {
    const Kinds kinds = look_all(expr);
    // selectattr('role', ...), map(attribute='content'), sort(attribute='a,b.c'), ...
    const auto note = [&](const ExprPtr& argument) {
      const std::string* path = literal(argument);
      if (path != nullptr) read(item_of(kinds), path->substr(0, path->find_first_of(".,")));
    };
    for (size_t i = 1; i < expr.args.size(); ++i) note(expr.args[i]);
    for (const auto& item : expr.named) note(item.second);
    return expr.name == "first" || expr.name == "last" ? item_of(kinds) : kinds;
  }

  Kinds look_call(const Expr& expr) {
    const Expr& callee = *expr.args[0];
    const Kinds kinds = look_all(expr);
    if (callee.kind == Expr::Kind::attribute && callee.name == "get" && expr.args.size() > 1) {
      const std::string* key = literal(expr.args[1]);
      return key != nullptr ? read(look(*callee.args[0]), *key) : 0;
    }
    const auto macro = macros_.find(callee.name);
    if (callee.kind == Expr::Kind::name && macro != macros_.end()) {
      const std::vector<std::string>& params = macro->second->params;
      for (size_t i = 1; i < expr.args.size() && i <= params.size(); ++i) {
        add(params[i - 1], look(*expr.args[i]));
      }
      for (const auto& [name, value] : expr.named) add(name, look(*value));
      return 0;
    }
    return kinds != 0 ? kUnknown : 0;
  }

  // 'key' in message
  Kinds look_compare(const Expr& expr) {
    look_all(expr);
    for (size_t i = 0; i < expr.compares.size(); ++i) {
      const std::string* key = literal(expr.args[i]);
      const bool in = expr.compares[i] == CompareOp::in || expr.compares[i] == CompareOp::not_in;
      if (in && key != nullptr) read(look(*expr.args[i + 1]), *key);
    }
    return 0;
  }

  Reads reads_;
  std::map<std::string, Kinds> kinds_;
  std::map<std::string, const MacroCode*> macros_;
  bool changed_ = false;
};

}  // namespace

Reads find_reads(const Block& block) { return Finder(block).take(); }

}  // namespace kvik::jinja
