#include "caches.h"

#include "arguments.h"
#include "errors.h"

namespace nb = nanobind;

namespace kvik::python {
namespace {

bool is_none_attribute(nb::handle entry, const char* name) {
  return nb::getattr(entry, name, nb::none()).is_none();
}

}  // namespace

InputRows import_rows(nb::handle keys, nb::handle values) {
  return {import_array(keys, "keys", 4), import_array(values, "values", 4)};
}

ForeignRows import_foreign(nb::handle entry) {
  if (!nb::hasattr(entry, "keys") || !nb::hasattr(entry, "values")) {
    throw nb::type_error(("a cache needs keys, values and offset; " +
                          std::string(nb::type_name(entry.type()).c_str()) + " lacks them")
                             .c_str());
  }
  ForeignRows rows;
  if (!is_none_attribute(entry, "step")) {
    rows.step = to_integer(entry.attr("step"), "the step of the entry");
  }
  if (is_none_attribute(entry, "keys") || is_none_attribute(entry, "values")) return rows;
  rows.rows = import_rows(entry.attr("keys"), entry.attr("values"));
  // A cache of another library may hold more rows than are valid; one without an offset holds none.
  rows.offset = is_none_attribute(entry, "offset")
                    ? rows.rows->keys.view.dim(2)
                    : to_integer(entry.attr("offset"), "the offset of the entry");
  return rows;
}

std::optional<InputRows> import_state(nb::handle state) {
  if (state.is_none()) return std::nullopt;
  // A str and an array are sequences too, of something else.
  if (!nb::isinstance<nb::tuple>(state) && !nb::isinstance<nb::list>(state)) {
    throw nb::type_error(("a state is a pair (keys, values), or None, not " +
                          std::string(nb::type_name(state.type()).c_str()))
                             .c_str());
  }
  const size_t size = nb::len(state);
  if (size == 0) return std::nullopt;
  if (size != 2) throw nb::value_error("a state is a pair (keys, values), or None");
  const nb::object keys = state[0];
  const nb::object values = state[1];
  if (keys.is_none() && values.is_none()) return std::nullopt;
  if (keys.is_none() || values.is_none()) {
    throw nb::value_error("a state needs keys and values, or None for both");
  }
  return import_rows(keys, values);
}

}  // namespace kvik::python
