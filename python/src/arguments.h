// The arguments of a call from Python, checked by name.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"

namespace kvik::python {

// One value each. Throws TypeError for another type and ValueError for a number out of range;
// `name` is that of the argument. An int is whatever has __index__, NumPy's integers among them; a
// bool is no number.
int64_t to_integer(nanobind::handle value, const std::string& name);
double to_number(nanobind::handle value, const std::string& name);
bool to_flag(nanobind::handle value, const std::string& name);
std::string to_text(nanobind::handle value, const std::string& name);
// A sequence or an array of ints.
std::vector<int32_t> to_integers(nanobind::handle value, const std::string& name);

// A number that a float32 holds, or its nearest; neither infinite nor NaN.
float to_finite_float(double value, const char* name);

// What a function takes, as its signature says: "def trim(self, n: int) -> int". Those after a "*"
// are given by keyword; a "**options" takes all other keywords.
class Signature {
 public:
  // Requires: the text of a function in one line, with balanced brackets.
  explicit Signature(const char* text);

  const std::string& name() const { return name_; }
  const char* text() const { return text_; }

 private:
  friend class Arguments;
  struct Parameter {
    std::string name;
    bool required = false;
    bool by_keyword_only = false;
  };
  const char* text_;
  std::string name_;
  std::vector<Parameter> parameters_;
  bool takes_other_keywords_ = false;
};

// The arguments of one call. Getters throw as to_integer and its sisters.
class Arguments {
 public:
  // Throws TypeError that names an argument which is missing, unknown, given twice or one too many.
  Arguments(const Signature& signature, const nanobind::args& args,
            const nanobind::kwargs& keywords);

  // None where it is missing. Requires: a name of the signature, as everywhere below.
  nanobind::object object(const char* name) const;
  ArrayLike array(const char* name) const { return nanobind::borrow<ArrayLike>(object(name)); }
  nanobind::list list(const char* name) const;

  int64_t integer(const char* name) const { return to_integer(object(name), name); }
  int64_t integer(const char* name, int64_t otherwise) const;
  std::optional<int64_t> optional_integer(const char* name) const;
  double number(const char* name, double otherwise) const;
  std::optional<double> optional_number(const char* name) const;
  bool flag(const char* name, bool otherwise) const;
  std::string text(const char* name) const { return to_text(object(name), name); }
  std::string text(const char* name, const char* otherwise) const;
  std::optional<std::string> optional_text(const char* name) const;
  // The keywords that "**options" took.
  const nanobind::dict& others() const { return others_; }

 private:
  // Invalid where it is missing.
  nanobind::handle find(const char* name) const;

  const Signature& signature_;
  std::vector<nanobind::object> values_;
  nanobind::dict others_;
};

// Binds function(self, Arguments) as the method that the signature names.
template <class Self, class Function>
void def_method(nanobind::class_<Self>& cls, const char* signature, Function function,
                const char* doc) {
  const auto parsed = std::make_shared<const Signature>(signature);
  cls.def(
      parsed->name().c_str(),
      [parsed, function](Self& self, const nanobind::args& args, const nanobind::kwargs& keywords) {
        return function(self, Arguments(*parsed, args, keywords));
      },
      nanobind::sig(signature), doc);
}

// Binds function(place of the new object, Arguments) as __init__.
template <class Self, class Function>
void def_init(nanobind::class_<Self>& cls, const char* signature, Function function,
              const char* doc) {
  const auto parsed = std::make_shared<const Signature>(signature);
  cls.def(
      "__init__",
      [parsed, function](Self* self, const nanobind::args& args, const nanobind::kwargs& keywords) {
        function(self, Arguments(*parsed, args, keywords));
      },
      nanobind::sig(signature), doc);
}

// Binds function(Arguments), which returns a new object or a value.
template <class Self, class Function>
void def_static(nanobind::class_<Self>& cls, const char* signature, Function function,
                const char* doc) {
  const auto parsed = std::make_shared<const Signature>(signature);
  cls.def_static(
      parsed->name().c_str(),
      [parsed, function](const nanobind::args& args, const nanobind::kwargs& keywords) {
        return function(Arguments(*parsed, args, keywords));
      },
      nanobind::rv_policy::take_ownership, nanobind::sig(signature), doc);
}

template <class Function>
void def_function(nanobind::module_& module, const char* signature, Function function,
                  const char* doc) {
  const auto parsed = std::make_shared<const Signature>(signature);
  module.def(
      parsed->name().c_str(),
      [parsed, function](const nanobind::args& args, const nanobind::kwargs& keywords) {
        return function(Arguments(*parsed, args, keywords));
      },
      nanobind::sig(signature), doc);
}

}  // namespace kvik::python
