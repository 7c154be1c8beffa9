#include "arguments.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "kvik/core/check.h"

namespace nb = nanobind;

namespace kvik::python {
namespace {

std::string type_of(nb::handle value) { return nb::type_name(value.type()).c_str(); }

[[noreturn]] void wrong_type(const std::string& name, const char* wanted, nb::handle value) {
  throw nb::type_error((name + " must be " + wanted + ", not " + type_of(value)).c_str());
}

// The words of a parameter list, cut at commas outside brackets and quotes.
std::vector<std::string_view> split_parameters(std::string_view list) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '\'') quoted = !quoted;
    if (c == '[' || c == '(') ++depth;
    if (c == ']' || c == ')') --depth;
    if (c != ',' || depth > 0 || quoted) continue;
    std::string_view part = list.substr(begin, i - begin);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    if (!part.empty()) parts.push_back(part);
    begin = i + 1;
  }
  return parts;
}

}  // namespace

int64_t to_integer(nb::handle value, const std::string& name) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) wrong_type(name, "an int", value);
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {  // an array of several elements has __index__ too
    PyErr_Clear();
    wrong_type(name, "an int", value);
  }
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) {
    throw nb::value_error((name + " is out of range: it needs an int of 64 bits").c_str());
  }
  return number;
}

double to_number(nb::handle value, const std::string& name) {
  double number = 0;
  const bool is_complex =
      PyComplex_Check(value.ptr()) || type_of(value).find("complex") != std::string::npos;
  if (!PyBool_Check(value.ptr()) && !is_complex) {
    number = PyFloat_AsDouble(value.ptr());
    if (PyErr_Occurred() == nullptr) return number;
    const bool too_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
    PyErr_Clear();
    if (too_large) throw nb::value_error((name + " is too large for a float").c_str());
  }
  wrong_type(name, "a float", value);
}

bool to_flag(nb::handle value, const std::string& name) {
  if (value.is(nb::bool_(true))) return true;
  if (value.is(nb::bool_(false))) return false;
  const std::string type = type_of(value);
  if (type == "numpy.bool" || type == "numpy.bool_") return PyObject_IsTrue(value.ptr()) == 1;
  wrong_type(name, "a bool", value);
}

std::string to_text(nb::handle value, const std::string& name) {
  if (!PyUnicode_Check(value.ptr())) wrong_type(name, "a str", value);
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text == nullptr) {
    PyErr_Clear();
    throw nb::value_error((name + " has characters that are no text (lone surrogates)").c_str());
  }
  return {text, static_cast<size_t>(size)};
}

std::vector<int32_t> to_integers(nb::handle value, const std::string& name) {
  const nb::object items = PyUnicode_Check(value.ptr()) || PyBytes_Check(value.ptr())
                               ? nb::object()
                               : nb::steal(PyObject_GetIter(value.ptr()));
  if (!items.is_valid()) {
    PyErr_Clear();
    wrong_type(name, "a sequence of ints", value);
  }
  std::vector<int32_t> numbers;
  for (nb::object item = nb::steal(PyIter_Next(items.ptr())); item.is_valid();
       item = nb::steal(PyIter_Next(items.ptr()))) {
    const std::string item_name = name + "[" + std::to_string(numbers.size()) + "]";
    const int64_t number = to_integer(item, item_name);
    if (number < std::numeric_limits<int32_t>::min() ||
        number > std::numeric_limits<int32_t>::max()) {
      throw nb::value_error(
          (item_name + " is " + std::to_string(number) + "; it needs an int of 32 bits").c_str());
    }
    numbers.push_back(static_cast<int32_t>(number));
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return numbers;
}

float to_finite_float(double value, const char* name) {
  const auto number = static_cast<float>(value);
  if (!std::isfinite(number)) {
    throw nb::value_error(
        (std::string(name) + " is " + std::to_string(value) + "; it must be finite as a float32")
            .c_str());
  }
  return number;
}

Signature::Signature(const char* text) : text_(text) {
  const std::string_view all = text;
  constexpr std::string_view kDef = "def ";
  const size_t open = all.find('(');
  const size_t arrow = all.rfind(") ->");
  KVIK_CHECK(all.substr(0, kDef.size()) == kDef && open < arrow && arrow != all.npos,
             "a signature reads def name(parameters) -> result");
  name_ = std::string(all.substr(kDef.size(), open - kDef.size()));
  bool by_keyword_only = false;
  for (const std::string_view part : split_parameters(all.substr(open + 1, arrow - open - 1))) {
    if (part == "self" || part == "/") continue;
    if (part == "*") {
      by_keyword_only = true;
    } else if (part.substr(0, 2) == "**") {
      takes_other_keywords_ = true;
    } else {
      const size_t end = part.find_first_of(":= ");
      parameters_.push_back(
          {std::string(part.substr(0, end)), part.find(" = ") == part.npos, by_keyword_only});
    }
  }
}

Arguments::Arguments(const Signature& signature, const nb::args& args, const nb::kwargs& keywords)
    : signature_(signature), values_(signature.parameters_.size()) {
  const std::string function = signature.name_ + "()";
  const auto fail = [&](const std::string& what) {
    throw nb::type_error((function + " " + what).c_str());
  };
  const auto& parameters = signature.parameters_;
  const auto num_positional = static_cast<size_t>(
      std::count_if(parameters.begin(), parameters.end(),
                    [](const auto& parameter) { return !parameter.by_keyword_only; }));
  if (args.size() > num_positional) {
    fail("takes " + std::to_string(num_positional) + " positional arguments; " +
         std::to_string(args.size()) + " were given");
  }
  for (size_t i = 0; i < args.size(); ++i) values_[i] = args[i];
  for (const auto [key, value] : keywords) {
    const std::string name = to_text(key, "a keyword");
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const auto& parameter) { return parameter.name == name; });
    if (found != parameters.end()) {
      nb::object& place = values_[static_cast<size_t>(found - parameters.begin())];
      if (place.is_valid()) fail("got " + name + " twice");
      place = nb::borrow(value);
    } else if (signature.takes_other_keywords_) {
      others_[key] = value;
    } else {
      fail("has no argument " + name);
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].required && !values_[i].is_valid()) fail("needs " + parameters[i].name);
  }
}

nb::handle Arguments::find(const char* name) const {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (signature_.parameters_[i].name == name) return values_[i];
  }
  KVIK_CHECK(false, "a function asks for an argument that its signature does not have");
  return {};
}

nb::object Arguments::object(const char* name) const {
  const nb::handle value = find(name);
  return value.is_valid() ? nb::borrow(value) : nb::none();
}

nb::list Arguments::list(const char* name) const {
  const nb::object value = object(name);
  if (!nb::isinstance<nb::list>(value)) wrong_type(name, "a list", value);
  return nb::borrow<nb::list>(value);
}

int64_t Arguments::integer(const char* name, int64_t otherwise) const {
  const nb::handle value = find(name);
  return value.is_valid() ? to_integer(value, name) : otherwise;
}

std::optional<int64_t> Arguments::optional_integer(const char* name) const {
  const nb::object value = object(name);
  return value.is_none() ? std::nullopt : std::optional(to_integer(value, name));
}

double Arguments::number(const char* name, double otherwise) const {
  const nb::handle value = find(name);
  return value.is_valid() ? to_number(value, name) : otherwise;
}

std::optional<double> Arguments::optional_number(const char* name) const {
  const nb::object value = object(name);
  return value.is_none() ? std::nullopt : std::optional(to_number(value, name));
}

bool Arguments::flag(const char* name, bool otherwise) const {
  const nb::handle value = find(name);
  return value.is_valid() ? to_flag(value, name) : otherwise;
}

std::string Arguments::text(const char* name, const char* otherwise) const {
  const nb::handle value = find(name);
  return value.is_valid() ? to_text(value, name) : otherwise;
}

std::optional<std::string> Arguments::optional_text(const char* name) const {
  const nb::object value = object(name);
  return value.is_none() ? std::nullopt : std::optional(to_text(value, name));
}

}  // namespace kvik::python
