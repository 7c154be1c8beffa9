#include "model/jinja/names.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace kvik::jinja {
namespace {

template <class T>
struct Named {
  std::string_view name;
  T value;
};

template <class T, size_t N>
std::optional<T> find(const Named<T> (&table)[N], std::string_view name) {
  for (const Named<T>& entry : table) {
    if (entry.name == name) return entry.value;
  }
  return std::nullopt;
}

constexpr Named<Filter> kFilters[] = {
    {"default", Filter::default_}, {"d", Filter::default_},    {"first", Filter::first},
    {"items", Filter::items},      {"join", Filter::join},     {"last", Filter::last},
    {"length", Filter::length},    {"count", Filter::length},  {"list", Filter::list},
    {"lower", Filter::lower},      {"reject", Filter::reject}, {"replace", Filter::replace},
    {"select", Filter::select},    {"string", Filter::string}, {"tojson", Filter::tojson},
    {"trim", Filter::trim},        {"upper", Filter::upper},
};

constexpr Named<Test> kTests[] = {
    {"boolean", Test::boolean}, {"defined", Test::defined},   {"false", Test::false_},
    {"integer", Test::integer}, {"iterable", Test::iterable}, {"mapping", Test::mapping},
    {"none", Test::none},       {"number", Test::number},     {"sequence", Test::sequence},
    {"string", Test::string},   {"true", Test::true_},        {"undefined", Test::undefined},
};

constexpr Named<Method> kMethods[] = {
    {"endswith", Method::endswith}, {"get", Method::get},
    {"items", Method::items},       {"keys", Method::keys},
    {"lower", Method::lower},       {"lstrip", Method::lstrip},
    {"replace", Method::replace},   {"rstrip", Method::rstrip},
    {"split", Method::split},       {"startswith", Method::startswith},
    {"strip", Method::strip},       {"upper", Method::upper},
    {"values", Method::values},
};

constexpr std::string_view kPythonMethods[] = {
    "append",       "capitalize", "casefold",    "center",     "clear",   "copy",
    "count",        "encode",     "endswith",    "expandtabs", "extend",  "find",
    "format",       "format_map", "fromkeys",    "get",        "index",   "insert",
    "isalnum",      "isalpha",    "isascii",     "isdecimal",  "isdigit", "isidentifier",
    "islower",      "isnumeric",  "isprintable", "isspace",    "istitle", "isupper",
    "items",        "join",       "keys",        "ljust",      "lower",   "lstrip",
    "maketrans",    "partition",  "pop",         "popitem",    "remove",  "removeprefix",
    "removesuffix", "replace",    "reverse",     "rfind",      "rindex",  "rjust",
    "rpartition",   "rsplit",     "rstrip",      "setdefault", "sort",    "split",
    "splitlines",   "startswith", "strip",       "swapcase",   "title",   "translate",
    "update",       "upper",      "values",      "zfill",
};

constexpr std::string_view kJinjaFunctions[] = {"cycler", "dict", "joiner", "lipsum", "range"};

}  // namespace

std::optional<Filter> find_filter(std::string_view name) { return find(kFilters, name); }
std::optional<Test> find_test(std::string_view name) { return find(kTests, name); }
std::optional<Method> find_method(std::string_view name) { return find(kMethods, name); }

Arity arity(Filter filter) {
  switch (filter) {
    case Filter::default_:
      return {0, 2};
    case Filter::join:
    case Filter::trim:
      return {0, 1};
    case Filter::reject:
    case Filter::replace:
    case Filter::select:
      return {2, 2};
    default:
      return {0, 0};
  }
}

Arity arity(Method method) {
  switch (method) {
    case Method::endswith:
    case Method::startswith:
      return {1, 1};
    case Method::get:
    case Method::split:
      return {1, 2};
    case Method::replace:
      return {2, 2};
    case Method::strip:
    case Method::lstrip:
    case Method::rstrip:
      return {0, 1};
    default:
      return {0, 0};
  }
}

bool is_python_method(std::string_view name) {
  return std::find(std::begin(kPythonMethods), std::end(kPythonMethods), name) !=
         std::end(kPythonMethods);
}

bool is_jinja_function(std::string_view name) {
  return std::find(std::begin(kJinjaFunctions), std::end(kJinjaFunctions), name) !=
         std::end(kJinjaFunctions);
}

}  // namespace kvik::jinja
