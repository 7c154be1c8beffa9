// The members that the three caches have alike.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments.h"
#include "caches.h"
#include "errors.h"
#include "options.h"

namespace kvik::python {

// state() of the owned caches cannot fail, that of the paged one can.
inline Result<std::optional<KvArrays>> as_result(std::optional<KvArrays> state) { return state; }
inline Result<std::optional<KvArrays>> as_result(Result<std::optional<KvArrays>> state) {
  return state;
}

// The paged cache hands out copies, the others their memory.
template <class Cache>
constexpr Access access_of() {
  return std::is_same_v<Cache, PagedKVCache> ? Access::read_only : Access::view;
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
                      held.family, access_of<Cache>());
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
    if (!nanobind::isinstance<nanobind::tuple>(meta) &&
        !nanobind::isinstance<nanobind::list>(meta)) {
      throw nanobind::type_error(("a meta_state is a tuple of str, or None, not " +
                                  std::string(nanobind::type_name(meta.type()).c_str()))
                                     .c_str());
    }
    for (const nanobind::handle item : meta) {
      items.push_back(to_text(nanobind::str(item), "an item of a meta_state"));
    }
  }
  check(locked(held, [&](Cache& cache) { return cache.set_meta_state(items); }));
}

// mlx-lm's form (N, return_array, window_size), or that of the articles (query_len, key_len,
// dtype).
template <class Cache>
nanobind::object make_mask(Held<Cache>& held, const Arguments& a) {
  const std::optional<int64_t> num_queries = a.optional_integer("N");
  const bool return_array = a.flag("return_array", false);
  const std::optional<int64_t> window = a.optional_integer("window_size");
  const std::optional<int64_t> query_len = a.optional_integer("query_len");
  const std::optional<int64_t> key_len = a.optional_integer("key_len");
  const nanobind::object dtype = a.object("dtype");
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

// The texts say what the two properties hold and what setting them does.
template <class Cache>
void add_cache_members(nanobind::class_<Held<Cache>>& cls, const char* fork_signature,
                       const char* state_text, const char* meta_text) {
  using Self = Held<Cache>;
  def_method(
      cls, "def size(self) -> int",
      [](Self& held, const Arguments&) { return locked(held, [](Cache& c) { return c.size(); }); },
      "The offset.");
  def_method(
      cls, "def empty(self) -> bool",
      [](Self& held, const Arguments&) { return locked(held, [](Cache& c) { return c.empty(); }); },
      "Whether the cache holds no keys and values.");
  def_method(
      cls, "def is_trimmable(self) -> bool", [](Self&, const Arguments&) { return true; }, "True.");
  def_method(
      cls, "def trim(self, n: int) -> int",
      [](Self& held, const Arguments& a) {
        const int64_t n = a.integer("n");
        return locked(held, [n](Cache& c) { return c.trim(n); });
      },
      "Drops the min(n, offset) newest rows and returns that number; 0 for a negative n. Frees "
      "nothing.");
  def_method(
      cls,
      "def make_mask(self, N: int | None = None, return_array: bool = False, "
      "window_size: int | None = None, *, query_len: int | None = None, key_len: "
      "int | None = None, dtype: object = None) -> kvik._types.Array | str | None",
      &make_mask<Cache>,
      "The mask of N queries that follow the cached rows, in mlx-lm's form: with window_size a "
      "bool array [N, offset + N]; else None for N = 1, the array for return_array, \"causal\" "
      "otherwise. Or, with query_len and key_len, an array [query_len, key_len] for the newest "
      "query_len of key_len positions; dtype is bool (the default; True = visible) or "
      "float32, float16, bfloat16 (0 = visible, else hidden).\n\nRaises ValueError for numbers "
      "out of range.");
  def_method(
      cls, fork_signature, [](Self& held, const Arguments&) { return fork_of(held); },
      "A second cache with the same rows. The two share them; each appends apart.");
  cls.def_prop_ro("offset", reader<Cache>([](Cache& c) { return c.offset(); }),
                  "Valid rows (tokens) of each batch row.")
      .def_prop_ro("capacity", reader<Cache>([](Cache& c) { return c.capacity(); }),
                   "Rows (tokens of a batch row) that fit without growing.")
      .def_prop_ro("nbytes", reader<Cache>([](Cache& c) { return c.nbytes(); }),
                   "Bytes of the rows for which memory is backed.")
      .def_prop_ro("resident_bytes", reader<Cache>([](Cache& c) { return c.resident_bytes(); }),
                   "Bytes that the system holds for the cache now, growth steps included; shared "
                   "with forks and views.")
      .def(
          "__copy__", [](Self& held) { return fork_of(held); }, "As fork().")
      .def(
          "__deepcopy__", [](Self& held, nanobind::handle) { return fork_of(held); },
          nanobind::arg("memo").none(), "As fork().")
      .def_prop_rw(
          "state",
          [](Self& held) { return export_pair(read_state(held), held.family, access_of<Cache>()); },
          [](Self& held, nanobind::object state) { write_state(held, state); },
          nanobind::for_getter(nanobind::sig("def state(self) -> tuple[kvik._types.Array | None, "
                                             "kvik._types.Array | None]")),
          nanobind::for_setter(nanobind::sig("def state(self, state: object, /) -> None")),
          nanobind::for_setter(nanobind::arg().none()), state_text)
      .def_prop_rw(
          "meta_state",
          [](Self& held) {
            return nanobind::tuple(
                nanobind::cast(locked(held, [](Cache& c) { return c.meta_state(); })));
          },
          [](Self& held, nanobind::object meta) { write_meta_state(held, meta); },
          nanobind::for_getter(nanobind::sig("def meta_state(self) -> tuple[str, str, str]")),
          nanobind::for_setter(nanobind::sig("def meta_state(self, meta: object, /) -> None")),
          nanobind::for_setter(nanobind::arg().none()), meta_text)
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
          nanobind::for_setter(nanobind::arg().none()), "The valid values, as keys.");
}

}  // namespace kvik::python
