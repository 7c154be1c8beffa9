// The members that the three caches have alike.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "caches.h"
#include "errors.h"
#include "options.h"

namespace kvik::python {

// state() of the owned caches cannot fail, that of the paged one can.
inline Result<std::optional<KvArrays>> as_result(std::optional<KvArrays> state) { return state; }
inline Result<std::optional<KvArrays>> as_result(Result<std::optional<KvArrays>> state) {
  return state;
}

template <class Cache>
std::optional<KvArrays> read_state(Held<Cache>& held) {
  return take(locked(held, [](Cache& cache) { return as_result(cache.state()); }));
}

template <class Cache>
void write_state(Held<Cache>& held, nanobind::handle state) {
  const std::optional<InputRows> rows = import_state(state);
  std::optional<KvArrays> arrays;
  if (rows) arrays = KvArrays{rows->keys.view, rows->values.view, nullptr};
  check(locked(held, [&](Cache& cache) { return cache.set_state(arrays); }));
  if (rows && rows->family()) held.family = *rows->family();
}

enum class Half : uint8_t { keys, values };

template <class Cache>
Array read_half(Held<Cache>& held, Half half) {
  const std::optional<KvArrays> arrays = read_state(held);
  if (!arrays) return nanobind::borrow<Array>(nanobind::none());
  return export_array(half == Half::keys ? arrays->keys : arrays->values, arrays->owner,
                      held.family);
}

template <class Cache>
void write_half(Held<Cache>& held, nanobind::handle value, Half half) {
  std::optional<InputArray> array;
  if (!value.is_none()) array = import_array(value, half == Half::keys ? "keys" : "values", 4);
  const std::optional<ConstTensorView> view = array ? std::optional(array->view) : std::nullopt;
  check(locked(held, [&](Cache& cache) {
    return half == Half::keys ? cache.set_keys(view) : cache.set_values(view);
  }));
  if (array && array->family) held.family = *array->family;
}

template <class Cache>
void write_meta_state(Held<Cache>& held, nanobind::handle meta) {
  std::vector<std::string> items;
  if (!meta.is_none()) {
    for (const nanobind::handle item : meta) {
      items.push_back(nanobind::cast<std::string>(nanobind::str(item)));
    }
  }
  check(locked(held, [&](Cache& cache) { return cache.set_meta_state(items); }));
}

// mlx-lm's form (N, return_array, window_size), or that of the articles (query_len, key_len,
// dtype).
template <class Cache>
nanobind::object make_mask(Held<Cache>& held, std::optional<int64_t> num_queries, bool return_array,
                           std::optional<int64_t> window, std::optional<int64_t> query_len,
                           std::optional<int64_t> key_len, nanobind::handle dtype) {
  if (num_queries && (query_len || key_len)) {
    throw nanobind::value_error("make_mask takes N, or query_len and key_len, not both");
  }
  if (!num_queries && (!query_len || !key_len)) {
    throw nanobind::value_error("make_mask needs N, or query_len and key_len");
  }
  if (num_queries) {
    return export_mask(take(locked(
        held, [&](Cache& cache) { return cache.make_mask(*num_queries, return_array, window); })));
  }
  if (window) throw nanobind::value_error("make_mask takes window_size with N only");
  const MaskType type = dtype.is_none() ? MaskType::boolean : parse_mask_type(dtype);
  return export_mask(take(
      locked(held, [&](Cache& cache) { return cache.make_mask(*query_len, *key_len, type); })));
}

// A report that the library writes as JSON, as a dict.
inline nanobind::dict dict_of(const std::string& json) {
  return nanobind::cast<nanobind::dict>(nanobind::module_::import_("json").attr("loads")(json));
}

// `read` reads a number of the cache.
template <class Cache, class Read>
auto reader(Read read) {
  return [read](Held<Cache>& held) { return locked(held, read); };
}

template <class Cache>
void add_cache_members(nanobind::class_<Held<Cache>>& cls) {
  using namespace nanobind::literals;
  using Self = Held<Cache>;
  cls.def_prop_ro("offset", reader<Cache>([](Cache& c) { return c.offset(); }),
                  "Valid rows (tokens) of each batch row.")
      .def("size", reader<Cache>([](Cache& c) { return c.size(); }), "The offset.")
      .def("empty", reader<Cache>([](Cache& c) { return c.empty(); }),
           "Whether the cache holds no keys and values.")
      .def_prop_ro("capacity", reader<Cache>([](Cache& c) { return c.capacity(); }),
                   "Rows (tokens of a batch row) that fit without growing.")
      .def_prop_ro("nbytes", reader<Cache>([](Cache& c) { return c.nbytes(); }),
                   "Bytes of the rows for which memory is backed.")
      .def_prop_ro("resident_bytes", reader<Cache>([](Cache& c) { return c.resident_bytes(); }),
                   "Bytes that the system holds for the cache now, growth steps included; shared "
                   "with forks and views.")
      .def(
          "is_trimmable", [](Self&) { return true; }, "True.")
      .def(
          "trim",
          [](Self& held, int64_t n) { return locked(held, [n](Cache& c) { return c.trim(n); }); },
          "n"_a,
          "Drops the min(n, offset) newest rows and returns that number; 0 for a negative n. Frees "
          "nothing.")
      .def(
          "fork", [](Self& held) { return fork_of(held); },
          "A second cache with the same rows. The two share them; each appends apart.")
      .def(
          "__copy__", [](Self& held) { return fork_of(held); }, "As fork().")
      .def(
          "__deepcopy__", [](Self& held, nanobind::handle) { return fork_of(held); }, "memo"_a,
          "As fork().")
      .def_prop_rw(
          "keys", [](Self& held) { return read_half(held, Half::keys); },
          [](Self& held, nanobind::object value) { write_half(held, value, Half::keys); },
          nanobind::for_getter(nanobind::sig("def keys(self) -> kvik._types.Array | None")),
          nanobind::for_setter(
              nanobind::sig("def keys(self, value: kvik._types.ArrayLike | None, /) -> None")),
          nanobind::for_setter(nanobind::arg().none()),
          "The valid keys, [B, H_kv, offset, D], or None. Setting replaces them: at once "
          "where the array fits the values, else when the values are set too; None empties "
          "the cache.")
      .def_prop_rw(
          "values", [](Self& held) { return read_half(held, Half::values); },
          [](Self& held, nanobind::object value) { write_half(held, value, Half::values); },
          nanobind::for_getter(nanobind::sig("def values(self) -> kvik._types.Array | None")),
          nanobind::for_setter(
              nanobind::sig("def values(self, value: kvik._types.ArrayLike | None, /) -> None")),
          nanobind::for_setter(nanobind::arg().none()), "The valid values, as keys.")
      .def(
          "make_mask", &make_mask<Cache>, "N"_a = nanobind::none(), "return_array"_a = false,
          "window_size"_a = nanobind::none(), nanobind::kw_only(), "query_len"_a = nanobind::none(),
          "key_len"_a = nanobind::none(), "dtype"_a = nanobind::none(),
          nanobind::sig(
              "def make_mask(self, N: int | None = None, return_array: bool = False, "
              "window_size: int | None = None, *, query_len: int | None = None, key_len: "
              "int | None = None, dtype: object = None) -> kvik._types.Array | str | None"),
          "The mask of N queries that follow the cached rows, in mlx-lm's form: with window_size a "
          "bool array [N, offset + N]; else None for N = 1, the array for return_array, \"causal\" "
          "otherwise. Or, with query_len and key_len, an array [query_len, key_len] for the newest "
          "query_len of key_len positions; dtype is bool (the default; True = visible) or "
          "float32, float16, bfloat16 (0 = visible, else hidden).\n\nRaises ValueError for numbers "
          "out of range.");
}

}  // namespace kvik::python
