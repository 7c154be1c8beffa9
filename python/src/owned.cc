// TailOwnedKVCache and BlockOwnedKVCache.
#include <string>

#include "cache_members.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvik::python {
namespace {

DetachMode mode_of(const std::string& name) { return take(parse_detach_mode(name)); }

// The rows that a constructor was given, cut to the offset; none: there are none.
struct GivenRows {
  InputRows rows;
  std::optional<int64_t> offset;
};
std::optional<GivenRows> given_rows(nb::handle keys, nb::handle values,
                                    std::optional<int64_t> offset) {
  if (keys.is_none() != values.is_none()) {
    throw nb::value_error("give both keys and values, or none of them");
  }
  if (!keys.is_none()) return GivenRows{import_rows(keys, values), offset};
  if (offset.value_or(0) != 0) {
    throw nb::value_error(
        ("offset is " + std::to_string(*offset) + ", but there are no keys and values").c_str());
  }
  return std::nullopt;
}

TailOwnedKVCache make_tail_owned(const TailOwnedOptions& options,
                                 const std::optional<GivenRows>& given) {
  auto made = [&] {
    const nb::gil_scoped_release no_gil;
    return given ? TailOwnedKVCache::create(options, given->rows.keys.view, given->rows.values.view,
                                            given->offset)
                 : TailOwnedKVCache::create(options);
  }();
  return take(std::move(made));
}

Bf16Family family_of(const std::optional<GivenRows>& given) {
  return given ? given->rows.family().value_or(Bf16Family::own) : Bf16Family::own;
}

std::optional<GivenRows> foreign_rows(const ForeignRows& foreign) {
  if (!foreign.rows) return std::nullopt;
  return GivenRows{*foreign.rows, foreign.offset};
}

template <class Cache>
PyTailOwned* tail_from(Held<Cache>& entry, DetachMode mode, std::optional<int64_t> step) {
  auto made =
      locked(entry, [&](Cache& cache) { return TailOwnedKVCache::from_cache(cache, mode, step); });
  return new PyTailOwned(take(std::move(made)), entry.family);
}

PyTailOwned* tail_owned_from_cache(nb::handle entry, const std::string& mode_name,
                                   std::optional<int64_t> step) {
  const DetachMode mode = mode_of(mode_name);
  if (nb::isinstance<PyTailOwned>(entry))
    return tail_from(nb::cast<PyTailOwned&>(entry), mode, step);
  if (nb::isinstance<PyBlockOwned>(entry)) {
    return tail_from(nb::cast<PyBlockOwned&>(entry), mode, step);
  }
  if (nb::isinstance<PyPaged>(entry)) return tail_from(nb::cast<PyPaged&>(entry), mode, step);
  const ForeignRows foreign = import_foreign(entry);
  TailOwnedOptions options;
  options.mode = mode;
  options.step = step.value_or(foreign.step.value_or(options.step));
  const std::optional<GivenRows> given = foreign_rows(foreign);
  return new PyTailOwned(make_tail_owned(options, given), family_of(given));
}

BlockOwnedKVCache make_block_owned(const BlockOwnedOptions& options,
                                   const std::optional<GivenRows>& given) {
  BlockOwnedKVCache cache = take(BlockOwnedKVCache::create(options));
  if (!given) return cache;
  const int64_t num_rows = given->rows.keys.view.dim(2);
  const int64_t offset = given->offset.value_or(num_rows);
  if (offset < 0 || offset > num_rows) {
    throw nb::value_error(("offset " + std::to_string(offset) + " does not fit the " +
                           std::to_string(num_rows) + " rows of keys")
                              .c_str());
  }
  const KvArrays rows{rows_of(given->rows.keys.view, 0, offset),
                      rows_of(given->rows.values.view, 0, offset), nullptr};
  if (offset > 0) check(cache.set_state(rows));
  return cache;
}

template <class Cache>
PyBlockOwned* block_from(Held<Cache>& entry, DetachMode mode, int64_t block_size) {
  auto made = locked(
      entry, [&](Cache& cache) { return BlockOwnedKVCache::from_cache(cache, mode, block_size); });
  return new PyBlockOwned(take(std::move(made)), entry.family);
}

PyBlockOwned* block_owned_from_cache(nb::handle entry, const std::string& mode_name,
                                     int64_t block_size) {
  const DetachMode mode = mode_of(mode_name);
  if (nb::isinstance<PyTailOwned>(entry)) {
    return block_from(nb::cast<PyTailOwned&>(entry), mode, block_size);
  }
  if (nb::isinstance<PyBlockOwned>(entry)) {
    return block_from(nb::cast<PyBlockOwned&>(entry), mode, block_size);
  }
  if (nb::isinstance<PyPaged>(entry)) {
    return block_from(nb::cast<PyPaged&>(entry), mode, block_size);
  }
  const std::optional<GivenRows> given = foreign_rows(import_foreign(entry));
  return new PyBlockOwned(make_block_owned({block_size, mode}, given), family_of(given));
}

template <class Cache>
nb::tuple update_and_fetch(Held<Cache>& held, const ArrayLike& keys, const ArrayLike& values) {
  const InputRows rows = import_rows(keys, values);
  auto all = take(locked(held, [&](Cache& cache) {
    return cache.update_and_fetch(rows.keys.view, rows.values.view);
  }));
  if (rows.family()) held.family = *rows.family();
  return export_pair(all, held.family);
}

// What both owned caches have beyond the members of all.
template <class Cache>
void add_owned_members(nb::class_<Held<Cache>>& cls) {
  using Self = Held<Cache>;
  cls.def("update_and_fetch", &update_and_fetch<Cache>, "keys"_a, "values"_a,
          nb::sig("def update_and_fetch(self, keys: kvik._types.ArrayLike, values: "
                  "kvik._types.ArrayLike) -> tuple[kvik._types.Array, kvik._types.Array]"),
          "Appends keys [B, H_kv, T, Dk] and values [B, H_kv, T, Dv] and returns all valid rows, "
          "read-only, without copying them. What is returned keeps its content for ever.\n\nRaises "
          "ValueError for shapes or dtypes that differ from the first write, MemoryError; then "
          "nothing was changed.")
      .def_prop_ro(
          "mode",
          [](Self& held) {
            return std::string(detach_mode_name(locked(held, [](Cache& c) { return c.mode(); })));
          },
          "Name of the detach mode.")
      .def_prop_rw(
          "state", [](Self& held) { return export_pair(read_state(held), held.family); },
          [](Self& held, nb::object state) { write_state(held, state); },
          nb::for_getter(nb::sig("def state(self) -> tuple[kvik._types.Array | None, "
                                 "kvik._types.Array | None]")),
          nb::for_setter(nb::sig("def state(self, state: object, /) -> None")),
          nb::for_setter(nb::arg().none()),
          "(keys, values) of the valid rows, read-only, not copied; (None, None) while "
          "empty. Setting replaces all rows by a copy and takes the offset from the arrays; "
          "None or (None, None) empties the cache.")
      .def_prop_rw(
          "meta_state",
          [](Self& held) {
            return nb::tuple(nb::cast(locked(held, [](Cache& c) { return c.meta_state(); })));
          },
          [](Self& held, nb::object meta) { write_meta_state(held, meta); },
          nb::for_getter(nb::sig("def meta_state(self) -> tuple[str, str, str]")),
          nb::for_setter(nb::sig("def meta_state(self, meta: object, /) -> None")),
          nb::for_setter(nb::arg().none()),
          "(step or block size, offset, mode) as strings. Restore the state first, then "
          "this. Raises ValueError for what does not fit; then nothing was changed.")
      .def(
          "tail_owner_stats",
          [](Self& held) {
            return dict_of(to_json(locked(held, [](Cache& c) { return c.tail_owner_stats(); })));
          },
          "mode, updates, arrays, bytes (of the new rows), time_s (seconds), copies, nbytes, "
          "resident_bytes.");
}

}  // namespace

void add_tail_owned(nb::module_& module, const Process&) {
  nb::class_<PyTailOwned> cls(
      module, "TailOwnedKVCache", nb::is_weak_referenceable(),
      "Keys and values of one layer, [B, H_kv, T, D]; an update writes the new rows only.\n\n"
      "B, H_kv, the head dims and dtypes (float32, float16, bfloat16) are fixed by the first "
      "write. "
      "Arrays that were returned keep their content for ever. A cache may be used by several "
      "threads; "
      "they wait for each other, and run without the GIL.");
  cls.def(
         "__init__",
         [](PyTailOwned* self, nb::object keys, nb::object values, int64_t step,
            std::optional<int64_t> offset, const std::string& mode, int64_t max_rows) {
           const TailOwnedOptions options{step, mode_of(mode), max_rows};
           const auto given = given_rows(keys, values, offset);
           new (self) PyTailOwned(make_tail_owned(options, given), family_of(given));
         },
         "keys"_a = nb::none(), "values"_a = nb::none(), "step"_a = TailOwnedOptions{}.step,
         "offset"_a = nb::none(), "mode"_a = "contiguous_eval",
         "max_rows"_a = TailOwnedOptions{}.max_rows,
         nb::sig("def __init__(self, keys: kvik._types.ArrayLike | None = None, values: "
                 "kvik._types.ArrayLike | None = None, step: int = 256, offset: int | None = None, "
                 "mode: str = 'contiguous_eval', max_rows: int = 262144) -> None"),
         "A cache of the first offset rows (None: all) of keys and values, which are copied, or an "
         "empty one. The capacity is a multiple of step; address space is reserved for "
         "max_rows.\n\n"
         "Raises ValueError for a mode that is none of eval_only, contiguous_eval, "
         "selected_slice_contiguous_eval, metal_copy_leaf, and for numbers or arrays that do not "
         "fit.")
      .def_static(
          "from_cache", &tail_owned_from_cache, "entry"_a, "mode"_a = "contiguous_eval",
          "step"_a = nb::none(), nb::rv_policy::take_ownership,
          nb::sig("def from_cache(entry: object, mode: str = 'contiguous_eval', step: int | "
                  "None = None) -> TailOwnedKVCache"),
          "A cache with the rows of another: by reference from a tail- or block-owned one, "
          "else copied, from whatever has keys, values and offset. step: None takes the "
          "entry's, or 256.")
      .def_prop_ro("step", reader<TailOwnedKVCache>([](TailOwnedKVCache& c) { return c.step(); }),
                   "Rows by which the capacity grows.");
  add_cache_members(cls);
  add_owned_members(cls);
}

void add_block_owned(nb::module_& module, const Process&) {
  nb::class_<PyBlockOwned> cls(
      module, "BlockOwnedKVCache", nb::is_weak_referenceable(),
      "As TailOwnedKVCache, with rows counted in blocks of block_size rows.");
  cls.def(
         "__init__",
         [](PyBlockOwned* self, int64_t block_size, const std::string& mode, nb::object keys,
            nb::object values, std::optional<int64_t> offset, int64_t max_rows) {
           const BlockOwnedOptions options{block_size, mode_of(mode), max_rows};
           const auto given = given_rows(keys, values, offset);
           new (self) PyBlockOwned(make_block_owned(options, given), family_of(given));
         },
         "block_size"_a = BlockOwnedOptions{}.block_size, "mode"_a = "contiguous_eval",
         "keys"_a = nb::none(), "values"_a = nb::none(), "offset"_a = nb::none(),
         "max_rows"_a = BlockOwnedOptions{}.max_rows,
         nb::sig(
             "def __init__(self, block_size: int = 1024, mode: str = 'contiguous_eval', keys: "
             "kvik._types.ArrayLike | None = None, values: kvik._types.ArrayLike | None = None, "
             "offset: int | None = None, max_rows: int = 262144) -> None"),
         "A cache of the first offset rows (None: all) of keys and values, which are copied, or an "
         "empty one. Raises ValueError as TailOwnedKVCache.")
      .def_static(
          "from_cache", &block_owned_from_cache, "entry"_a, "mode"_a = "contiguous_eval",
          "block_size"_a = 1024, nb::rv_policy::take_ownership,
          nb::sig("def from_cache(entry: object, mode: str = 'contiguous_eval', block_size: "
                  "int = 1024) -> BlockOwnedKVCache"),
          "As TailOwnedKVCache.from_cache; the block size is the argument.")
      .def(
          "update_without_fetch",
          [](PyBlockOwned& held, const ArrayLike& keys, const ArrayLike& values) {
            const InputRows rows = import_rows(keys, values);
            check(locked(held, [&](BlockOwnedKVCache& cache) {
              return cache.update_without_fetch(rows.keys.view, rows.values.view);
            }));
            if (rows.family()) held.family = *rows.family();
          },
          "keys"_a, "values"_a, "As update_and_fetch, returning nothing.")
      .def(
          "active_block_slices",
          [](PyBlockOwned& held) {
            nb::list slices;
            for (const BlockOwnedKVCache::Slice& slice :
                 locked(held, [](BlockOwnedKVCache& c) { return c.active_block_slices(); })) {
              slices.append(nb::make_tuple(
                  slice.start, export_array(slice.rows.keys, slice.rows.owner, held.family),
                  export_array(slice.rows.values, slice.rows.owner, held.family)));
            }
            return slices;
          },
          nb::sig("def active_block_slices(self) -> list[tuple[int, kvik._types.Array, "
                  "kvik._types.Array]]"),
          "(first row, keys, values) of each block with valid rows, the last one cut to them; "
          "read-only, not copied.")
      .def_prop_ro("block_size",
                   reader<BlockOwnedKVCache>([](BlockOwnedKVCache& c) { return c.block_size(); }),
                   "Rows of a block.")
      .def_prop_ro("num_blocks",
                   reader<BlockOwnedKVCache>([](BlockOwnedKVCache& c) { return c.num_blocks(); }),
                   "Blocks that are backed with memory; a trim keeps them.");
  add_cache_members(cls);
  add_owned_members(cls);
}

}  // namespace kvik::python
