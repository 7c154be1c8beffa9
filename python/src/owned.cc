// TailOwnedKVCache and BlockOwnedKVCache.
#include <string>

#include "cache_members.h"

namespace nb = nanobind;

namespace kvik::python {
namespace {

DetachMode mode_of(const Arguments& a) {
  return take(parse_detach_mode(a.text("mode", "contiguous_eval")));
}

// The rows that a constructor was given, cut to the offset; none: there are none.
struct GivenRows {
  InputRows rows;
  std::optional<int64_t> offset;
};
std::optional<GivenRows> given_rows(const Arguments& a) {
  const nb::object keys = a.object("keys");
  const nb::object values = a.object("values");
  const std::optional<int64_t> offset = a.optional_integer("offset");
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

PyTailOwned* tail_owned_from_cache(const Arguments& a) {
  const nb::object entry = a.object("entry");
  const DetachMode mode = mode_of(a);
  const std::optional<int64_t> step = a.optional_integer("step");
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

PyBlockOwned* block_owned_from_cache(const Arguments& a) {
  const nb::object entry = a.object("entry");
  const DetachMode mode = mode_of(a);
  const int64_t block_size = a.integer("block_size", BlockOwnedOptions{}.block_size);
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
nb::tuple update_and_fetch(Held<Cache>& held, const Arguments& a) {
  const InputRows rows = import_rows(a.object("keys"), a.object("values"));
  auto all = take(locked(held, [&](Cache& cache) {
    return cache.update_and_fetch(rows.keys.view, rows.values.view);
  }));
  if (rows.family()) held.family = *rows.family();
  return export_pair(all, held.family, Access::view);
}

constexpr const char* kOwnedStateText =
    "(keys, values) of the valid rows, read-only, not copied; (None, None) while empty. Setting "
    "replaces all rows by a copy and takes the offset from the arrays; None or (None, None) "
    "empties the cache.";
constexpr const char* kOwnedMetaText =
    "(step or block size, offset, mode) as strings. Restore the state first, then this. Raises "
    "ValueError for what does not fit; then nothing was changed.";

// What both owned caches have beyond the members of all.
template <class Cache>
void add_owned_members(nb::class_<Held<Cache>>& cls) {
  using Self = Held<Cache>;
  def_method(
      cls,
      "def update_and_fetch(self, keys: kvik._types.ArrayLike, values: kvik._types.ArrayLike) -> "
      "tuple[kvik._types.Array, kvik._types.Array]",
      &update_and_fetch<Cache>,
      "Appends keys [B, H_kv, T, Dk] and values [B, H_kv, T, Dv] and returns all valid rows, "
      "read-only, without copying them. What is returned keeps its content for ever.\n\nRaises "
      "ValueError for shapes or dtypes that differ from the first write, MemoryError; then "
      "nothing was changed.");
  def_method(
      cls, "def tail_owner_stats(self) -> dict",
      [](Self& held, const Arguments&) {
        return dict_of(to_json(locked(held, [](Cache& c) { return c.tail_owner_stats(); })));
      },
      "mode, updates, arrays, bytes (of the new rows), time_s (seconds), copies, nbytes, "
      "resident_bytes.");
  cls.def_prop_ro(
      "mode",
      [](Self& held) {
        return std::string(detach_mode_name(locked(held, [](Cache& c) { return c.mode(); })));
      },
      "Name of the detach mode.");
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
  def_init(
      cls,
      "def __init__(self, keys: kvik._types.ArrayLike | None = None, values: "
      "kvik._types.ArrayLike | None = None, step: int = 256, offset: int | None = None, "
      "mode: str = 'contiguous_eval', max_rows: int = 262144) -> None",
      [](PyTailOwned* self, const Arguments& a) {
        const TailOwnedOptions defaults;
        const TailOwnedOptions options{a.integer("step", defaults.step), mode_of(a),
                                       a.integer("max_rows", defaults.max_rows)};
        const auto given = given_rows(a);
        new (self) PyTailOwned(make_tail_owned(options, given), family_of(given));
      },
      "A cache of the first offset rows (None: all) of keys and values, which are copied, or an "
      "empty one. The capacity is a multiple of step; address space is reserved for "
      "max_rows.\n\n"
      "Raises ValueError for a mode that is none of eval_only, contiguous_eval, "
      "selected_slice_contiguous_eval, metal_copy_leaf, and for numbers or arrays that do not "
      "fit.");
  def_static(
      cls,
      "def from_cache(entry: object, mode: str = 'contiguous_eval', step: int | None = None) -> "
      "TailOwnedKVCache",
      &tail_owned_from_cache,
      "A cache with the rows of another: by reference from a tail- or block-owned one, "
      "else copied, from whatever has keys, values and offset. step: None takes the "
      "entry's, or 256.");
  cls.def_prop_ro("step", reader<TailOwnedKVCache>([](TailOwnedKVCache& c) { return c.step(); }),
                  "Rows by which the capacity grows.");
  add_cache_members(cls, "def fork(self) -> TailOwnedKVCache", kOwnedStateText, kOwnedMetaText);
  add_owned_members(cls);
}

void add_block_owned(nb::module_& module, const Process&) {
  nb::class_<PyBlockOwned> cls(
      module, "BlockOwnedKVCache", nb::is_weak_referenceable(),
      "As TailOwnedKVCache, with rows counted in blocks of block_size rows.");
  def_init(
      cls,
      "def __init__(self, block_size: int = 1024, mode: str = 'contiguous_eval', keys: "
      "kvik._types.ArrayLike | None = None, values: kvik._types.ArrayLike | None = None, "
      "offset: int | None = None, max_rows: int = 262144) -> None",
      [](PyBlockOwned* self, const Arguments& a) {
        const BlockOwnedOptions defaults;
        const BlockOwnedOptions options{a.integer("block_size", defaults.block_size), mode_of(a),
                                        a.integer("max_rows", defaults.max_rows)};
        const auto given = given_rows(a);
        new (self) PyBlockOwned(make_block_owned(options, given), family_of(given));
      },
      "A cache of the first offset rows (None: all) of keys and values, which are copied, or an "
      "empty one. Raises ValueError as TailOwnedKVCache.");
  def_static(
      cls,
      "def from_cache(entry: object, mode: str = 'contiguous_eval', block_size: int = 1024) -> "
      "BlockOwnedKVCache",
      &block_owned_from_cache, "As TailOwnedKVCache.from_cache; the block size is the argument.");
  def_method(
      cls,
      "def update_without_fetch(self, keys: kvik._types.ArrayLike, values: kvik._types.ArrayLike) "
      "-> None",
      [](PyBlockOwned& held, const Arguments& a) {
        const InputRows rows = import_rows(a.object("keys"), a.object("values"));
        check(locked(held, [&](BlockOwnedKVCache& cache) {
          return cache.update_without_fetch(rows.keys.view, rows.values.view);
        }));
        if (rows.family()) held.family = *rows.family();
      },
      "As update_and_fetch, returning nothing.");
  def_method(
      cls,
      "def active_block_slices(self) -> list[tuple[int, kvik._types.Array, kvik._types.Array]]",
      [](PyBlockOwned& held, const Arguments&) {
        nb::list slices;
        for (const BlockOwnedKVCache::Slice& slice :
             locked(held, [](BlockOwnedKVCache& c) { return c.active_block_slices(); })) {
          const auto array = [&](const ConstTensorView& rows) {
            return export_array(rows, slice.rows.owner, held.family, Access::view);
          };
          slices.append(
              nb::make_tuple(slice.start, array(slice.rows.keys), array(slice.rows.values)));
        }
        return slices;
      },
      "(first row, keys, values) of each block with valid rows, the last one cut to them; "
      "read-only, not copied.");
  cls.def_prop_ro("block_size",
                  reader<BlockOwnedKVCache>([](BlockOwnedKVCache& c) { return c.block_size(); }),
                  "Rows of a block.")
      .def_prop_ro("num_blocks",
                   reader<BlockOwnedKVCache>([](BlockOwnedKVCache& c) { return c.num_blocks(); }),
                   "Blocks that are backed with memory; a trim keeps them.");
  add_cache_members(cls, "def fork(self) -> BlockOwnedKVCache", kOwnedStateText, kOwnedMetaText);
  add_owned_members(cls);
}

}  // namespace kvik::python
