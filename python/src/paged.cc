// PagedKVCache.
#include <nanobind/stl/pair.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention_call.h"
#include "cache_members.h"
#include "graph.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvik::python {
namespace {

// The keyword arguments that are rows, taken out of the options.
struct GivenRows {
  std::optional<InputRows> rows;
  std::optional<int64_t> offset;
};
GivenRows take_rows(nb::kwargs& options) {
  GivenRows given;
  const auto pop = [&](const char* name) { return options.attr("pop")(name, nb::none()); };
  const nb::object keys = pop("keys");
  const nb::object values = pop("values");
  const nb::object offset = pop("offset");
  if (keys.is_none() != values.is_none()) {
    throw nb::value_error("give both keys and values, or none of them");
  }
  if (!offset.is_none()) given.offset = nb::cast<int64_t>(offset);
  if (!keys.is_none()) given.rows = import_rows(keys, values);
  if (keys.is_none() && given.offset.value_or(0) != 0) {
    throw nb::value_error(
        ("offset is " + std::to_string(*given.offset) + ", but there are no keys and values")
            .c_str());
  }
  return given;
}

PagedKVCache make_paged(const PagedKVCacheOptions& options, const Process& process,
                        const GivenRows& given) {
  auto made = [&] {
    const nb::gil_scoped_release no_gil;
    return given.rows ? PagedKVCache::create(options, process.backend, given.rows->keys.view,
                                             given.rows->values.view, given.offset)
                      : PagedKVCache::create(options, process.backend);
  }();
  return take(std::move(made));
}

Bf16Family family_of(const GivenRows& given) {
  return given.rows ? given.rows->family().value_or(Bf16Family::own) : Bf16Family::own;
}

template <class Cache>
PyPaged* paged_from(Held<Cache>& entry, const PagedKVCacheOptions& options,
                    const Process& process) {
  auto made = locked(entry, [&](Cache& cache) {
    return PagedKVCache::from_cache(cache, options, process.backend);
  });
  return new PyPaged(take(std::move(made)), entry.family);
}

PyPaged* paged_from_cache(const Process& process, nb::handle entry, const nb::kwargs& given) {
  const PagedKVCacheOptions options = paged_options(process, given, Reads::of_constructor);
  if (nb::isinstance<PyTailOwned>(entry)) {
    return paged_from(nb::cast<PyTailOwned&>(entry), options, process);
  }
  if (nb::isinstance<PyBlockOwned>(entry)) {
    return paged_from(nb::cast<PyBlockOwned&>(entry), options, process);
  }
  if (nb::isinstance<PyPaged>(entry)) {
    return paged_from(nb::cast<PyPaged&>(entry), options, process);
  }
  const ForeignRows foreign = import_foreign(entry);
  const GivenRows rows{foreign.rows, foreign.offset};
  return new PyPaged(make_paged(options, process, rows), family_of(rows));
}

PagedPhase phase_of(const std::string& name) { return parse_paged_phase(name); }

void update_without_fetch(PyPaged& held, const ArrayLike& keys, const ArrayLike& values,
                          const std::string& phase) {
  const InputRows rows = import_rows(keys, values);
  check(locked(held, [&](PagedKVCache& cache) {
    return cache.update_without_fetch(rows.keys.view, rows.values.view, phase_of(phase));
  }));
  if (rows.family()) held.family = *rows.family();
}

nb::tuple update_and_fetch(PyPaged& held, const ArrayLike& keys, const ArrayLike& values,
                           const std::string& phase) {
  const InputRows rows = import_rows(keys, values);
  auto all = take(locked(held, [&](PagedKVCache& cache) {
    return cache.update_and_fetch(rows.keys.view, rows.values.view, phase_of(phase));
  }));
  if (rows.family()) held.family = *rows.family();
  return export_pair(all, held.family);
}

std::optional<int64_t> head_dim_v(PyPaged& held) {
  const auto shape = locked(held, [](PagedKVCache& c) { return c.shape(); });
  return shape ? std::optional(shape->head_dim_v) : std::nullopt;
}

nb::object paged_attention(const Process& process, PyPaged& held, const CallArguments& arguments) {
  const BoundCall bound(arguments, NoMask::causal, head_dim_v(held));
  const bool served =
      take(locked(held, [&](PagedKVCache& cache) { return cache.paged_attention(bound.call()); }));
  process.fallbacks->warn();
  return served ? bound.result() : nb::none();
}

nb::object attend(const Process& process, PyPaged& held, const CallArguments& arguments) {
  const BoundCall bound(arguments, NoMask::causal, head_dim_v(held));
  check(locked(held, [&](PagedKVCache& cache) { return cache.attend(bound.call()); }));
  process.fallbacks->warn();
  return bound.result();
}

// Binds a function of the arguments of an attention call.
using Attend = nb::object (*)(const Process&, PyPaged&, const CallArguments&);
auto attention_method(const Process& process, Attend function) {
  return [process, function](PyPaged& held, const ArrayLike& queries, std::optional<double> scale,
                             std::optional<int64_t> sliding_window, nb::object mask,
                             std::optional<std::string> impl_override, nb::object sinks,
                             double softcap, const std::string& phase, nb::object out) {
    // As MTPLX says that there is none.
    if (sliding_window && *sliding_window <= 0) sliding_window.reset();
    return function(process, held,
                    {queries, scale, std::move(mask), sliding_window, std::move(impl_override),
                     std::move(sinks), softcap, phase, std::move(out)});
  };
}

nb::object last_bailout(PyPaged& held) {
  const std::optional<PagedBailout> bailout =
      locked(held, [](PagedKVCache& c) { return c.last_bailout(); });
  if (!bailout) return nb::none();
  nb::dict dict;
  dict["phase"] = std::string(paged_phase_name(bailout->phase));
  dict["reason"] = bailout->reason;
  const bool low_bit = locked(held, [](PagedKVCache& c) { return c.is_low_bit(); });
  dict["impl"] = std::string(paged_route_name(bailout->impl, low_bit));
  dict["offset"] = bailout->offset;
  dict["q_len"] = bailout->q_len;
  dict["max_q_len"] = bailout->max_q_len;
  dict["block_size"] = bailout->block_size;
  dict["sliding_window"] = bailout->sliding_window;
  dict["partitioned_enabled"] = bailout->partitioned_enabled;
  dict["partition_threshold"] = bailout->partition_threshold;
  return dict;
}

nb::tuple export_pages(PyPaged& held) {
  const std::optional<KvPages> pages =
      take(locked(held, [](PagedKVCache& c) { return c.export_pages(); }));
  if (!pages) return nb::make_tuple(nb::none(), nb::none());
  return nb::make_tuple(export_array(pages->key_cache, pages->owner, held.family),
                        export_array(pages->value_cache, pages->owner, held.family));
}

void import_pages(PyPaged& held, const ArrayLike& key_cache, const ArrayLike& value_cache,
                  const std::vector<int32_t>& block_table, int64_t offset) {
  const InputArray keys = import_array(key_cache, "key_cache", 4);
  const InputArray values = import_array(value_cache, "value_cache", 4);
  check(locked(held, [&](PagedKVCache& cache) {
    return cache.import_pages(keys.view, values.view, block_table, offset);
  }));
  const auto family = keys.family ? keys.family : values.family;
  if (family) held.family = *family;
}

// A read-only array of bytes of rank 4 over memory that `owner` holds.
nb::object export_bytes(std::span<const std::byte> bytes, std::initializer_list<size_t> shape,
                        const std::shared_ptr<const void>& owner) {
  const nb::capsule keep(new std::shared_ptr<const void>(owner), [](void* p) noexcept {
    delete static_cast<std::shared_ptr<const void>*>(p);
  });
  return nb::cast(nb::ndarray<nb::numpy, const uint8_t>(bytes.data(), shape, keep));
}

const char* dtype_text(DType dtype) {
  return dtype == DType::f32 ? "float32" : dtype == DType::f16 ? "float16" : "bfloat16";
}

nb::object export_codes(PyPaged& held, const std::string& layout_name) {
  const KvCodeLayout layout = take(parse_kv_code_layout(layout_name));
  const std::optional<KvCodes> codes =
      take(locked(held, [&](PagedKVCache& c) { return c.export_codes(layout); }));
  if (!codes) return nb::none();
  const KvArrayShape& shape = codes->shape;
  const auto batch = static_cast<size_t>(shape.batch);
  const auto heads = static_cast<size_t>(shape.num_kv_heads);
  const auto rows = static_cast<size_t>(codes->num_rows);
  const bool tiles = layout == KvCodeLayout::tiles;
  const size_t units = tiles ? (rows + kTileTokens - 1) / kTileTokens : rows;
  const auto array = [&](std::span<const std::byte> bytes) {
    const size_t count = batch * heads * units;
    const size_t unit = count == 0 ? 0 : bytes.size() / count;
    return tiles ? export_bytes(bytes, {batch, units, heads, unit}, codes->owner)
                 : export_bytes(bytes, {batch, heads, units, unit}, codes->owner);
  };
  nb::dict dict;
  dict["format"] =
      std::string(kv_code_name(codes->format.k)) + ":" + std::string(kv_code_name(codes->format.v));
  dict["layout"] = std::string(kv_code_layout_name(layout));
  dict["num_rows"] = codes->num_rows;
  dict["head_dim_k"] = shape.head_dim_k;
  dict["head_dim_v"] = shape.head_dim_v;
  dict["dtype_k"] = dtype_text(shape.dtype_k);
  dict["dtype_v"] = dtype_text(shape.dtype_v);
  dict["keys"] = array(codes->keys);
  dict["values"] = array(codes->values);
  return dict;
}

using ByteArray = nb::ndarray<const uint8_t, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

// What export_codes gave, or the like. The arrays keep the memory.
struct GivenCodes {
  KvCodes codes;
  ByteArray keys, values;
};
GivenCodes codes_of(const nb::dict& dict) {
  const auto item = [&](const char* name) {
    if (!dict.contains(name)) {
      throw nb::value_error(("codes need \"" + std::string(name) + "\"; see export_codes").c_str());
    }
    return nb::object(dict[name]);
  };
  const auto bytes = [&](const char* name) {
    ByteArray array;
    if (!nb::try_cast(item(name), array)) {
      throw nb::value_error(
          (std::string(name) + " of codes must be a row-major uint8 array of rank 4").c_str());
    }
    return array;
  };
  GivenCodes given{{}, bytes("keys"), bytes("values")};
  KvCodes& codes = given.codes;
  codes.format = take(parse_kv_format(nb::cast<std::string>(nb::str(item("format")))));
  codes.layout = take(parse_kv_code_layout(nb::cast<std::string>(nb::str(item("layout")))));
  codes.num_rows = nb::cast<int64_t>(item("num_rows"));
  const int heads_at = codes.layout == KvCodeLayout::rows ? 1 : 2;
  codes.shape = {static_cast<int64_t>(given.keys.shape(0)),
                 static_cast<int64_t>(given.keys.shape(static_cast<size_t>(heads_at))),
                 nb::cast<int64_t>(item("head_dim_k")),
                 nb::cast<int64_t>(item("head_dim_v")),
                 parse_dtype(item("dtype_k")),
                 parse_dtype(item("dtype_v"))};
  for (const size_t d : {0, 1, 2}) {
    if (given.keys.shape(d) != given.values.shape(d)) {
      throw nb::value_error("keys and values of codes differ in their first three dimensions");
    }
  }
  const auto span = [](const ByteArray& array) {
    return std::as_bytes(std::span<const uint8_t>(array.data(), array.size()));
  };
  codes.keys = span(given.keys);
  codes.values = span(given.values);
  return given;
}

void import_codes(PyPaged& held, const nb::dict& dict) {
  const GivenCodes given = codes_of(dict);
  check(locked(held, [&](PagedKVCache& cache) { return cache.import_codes(given.codes); }));
}

std::vector<int32_t> block_table(PyPaged& held, int64_t batch_row) {
  std::vector<int32_t> table;
  const int64_t batch = locked(held, [&](PagedKVCache& cache) -> int64_t {
    const auto shape = cache.shape();
    if (shape && batch_row >= 0 && batch_row < shape->batch) table = cache.block_table(batch_row);
    return shape ? shape->batch : 0;
  });
  if (batch_row < 0 || batch_row >= batch) {
    throw nb::index_error(("batch row " + std::to_string(batch_row) + " is not one of the " +
                           std::to_string(batch) + " of the cache")
                              .c_str());
  }
  return table;
}

void add_attention(nb::class_<PyPaged>& cls, const Process& process) {
  const auto def = [&](const char* name, Attend function, const nb::sig& signature,
                       const char* doc) {
    cls.def(name, attention_method(process, function), "queries"_a, "scale"_a = nb::none(),
            "sliding_window"_a = nb::none(), "mask"_a = nb::none(), "impl_override"_a = nb::none(),
            "sinks"_a = nb::none(), nb::kw_only(), "softcap"_a = 0.0, "phase"_a = "unknown",
            "out"_a = nb::none(), signature, doc);
  };
  def("paged_attention", &paged_attention,
      nb::sig(
          "def paged_attention(self, queries: kvik._types.ArrayLike, scale: float | None = None, "
          "sliding_window: int | None = None, mask: kvik._types.ArrayLike | str | None = None, "
          "impl_override: str | None = None, sinks: kvik._types.ArrayLike | None = None, *, "
          "softcap: float = 0.0, phase: str = 'unknown', out: kvik._types.ArrayLike | None = "
          "None) -> kvik._types.Array | None"),
      "Attention of queries [B, H, q_len, Dk] over all cached rows, those of the queries included "
      "(update first); returns [B, H, q_len, Dv] in the dtype of the queries, or writes to out and "
      "returns it.\n\n"
      "scale: None is 1 / sqrt(Dk). mask: None and \"causal\" let query j see the keys up to "
      "position offset - q_len + j, \"full\" all; an array (bool: True = visible; else 0 = "
      "visible, "
      "minus infinity = hidden) is [q_len, offset] or [B or 1, H or 1, q_len or 1, offset]. "
      "sliding_window: a query sees that many newest keys, its own among them; None, 0 or less: "
      "all. sinks: one logit per query head. softcap: 0 is none. phase: prefill, decode_verify, "
      "ar_decode or postcommit, for the counters. impl_override: a name of the routes paged or "
      "gather.\n\n"
      "Returns None where paged attention declines (see paged_attention_last_bailout): an empty "
      "cache, no queries, more than max_q_len, a mask that adds other numbers. Raises ValueError "
      "for shapes that do not fit. Runs without the GIL.");
  def("attend", &attend,
      nb::sig("def attend(self, queries: kvik._types.ArrayLike, scale: float | None = None, "
              "sliding_window: int | None = None, mask: kvik._types.ArrayLike | str | None = None, "
              "impl_override: str | None = None, sinks: kvik._types.ArrayLike | None = None, *, "
              "softcap: float = 0.0, phase: str = 'unknown', out: kvik._types.ArrayLike | None = "
              "None) -> kvik._types.Array"),
      "As paged_attention, but what that declines is served another way, counted and warned of: "
      "more than max_q_len queries over gathered rows (of a low-bit cache by the request's route), "
      "a "
      "mask that adds other numbers in plain loops, slowly. Raises UnsupportedError where there is "
      "no such fallback, or it is forbidden.");
}

void add_pages(nb::class_<PyPaged>& cls) {
  using Cache = PagedKVCache;
  cls.def_prop_ro("block_size", reader<Cache>([](Cache& c) { return c.block_size(); }),
                  "Tokens of a block.")
      .def_prop_ro("num_blocks", reader<Cache>([](Cache& c) { return c.num_blocks(); }),
                   "Blocks of each batch row: the capacity.")
      .def_prop_ro("allocated_blocks",
                   reader<Cache>([](Cache& c) { return c.paged_stats().allocated_blocks; }),
                   "Blocks that hold rows of this cache, over all batch rows.")
      .def_prop_ro("turboquant",
                   reader<Cache>([](Cache& c) { return c.options().turboquant.has_value(); }),
                   "Whether rows are stored by TurboQuant.")
      .def_prop_ro("kv_quant", reader<Cache>([](Cache& c) {
                     return c.options().kv_quant.has_value() && !c.options().turboquant;
                   }),
                   "Whether rows are stored by KV-Quant.")
      .def_prop_ro(
          "key_cache", [](PyPaged& held) { return nb::object(export_pages(held)[0]); },
          nb::sig("def key_cache(self) -> kvik._types.Array | None"),
          "A copy of the pages of the keys, [B * num_blocks, block_size, H_kv, Dk], decoded where "
          "they are stored in low bits, slots without a row zero; None before the first write.")
      .def_prop_ro(
          "value_cache", [](PyPaged& held) { return nb::object(export_pages(held)[1]); },
          nb::sig("def value_cache(self) -> kvik._types.Array | None"),
          "As key_cache, of the values.")
      .def("export_pages", &export_pages,
           nb::sig("def export_pages(self) -> tuple[kvik._types.Array | None, kvik._types.Array | "
                   "None]"),
           "(key_cache, value_cache).")
      .def(
          "import_pages", &import_pages, "key_cache"_a, "value_cache"_a, "block_table"_a,
          "offset"_a,
          "Replaces all rows by the first offset tokens of pages [num_pages, block_size, H_kv, D]. "
          "block_table: the pages of batch row 0, then of row 1, and so on, ceil(offset / "
          "block_size) each.\n\nRaises ValueError for what does not fit; then nothing was changed.")
      .def("export_codes", &export_codes, "layout"_a = "rows",
           nb::sig("def export_codes(self, layout: str = 'rows') -> dict[str, object] | None"),
           "The rows as they are stored, without rounding; None before the first write: format "
           "(\"q8:q8\"), layout, num_rows, head_dim_k, head_dim_v, dtype_k, dtype_v, and the uint8 "
           "arrays keys and values. layout \"rows\": [B, H_kv, num_rows, row bytes], rows as "
           "kvik.encode gives them; \"tiles\": [B, ceil(num_rows / 16), H_kv, tile bytes], as the "
           "pages hold them.")
      .def("import_codes", &import_codes, "codes"_a,
           nb::sig("def import_codes(self, codes: dict[str, object]) -> None"),
           "Replaces all rows by what export_codes gave, exactly.\n\nRaises ValueError for another "
           "format than this cache's, for sizes that do not fit and for rows that stand for values "
           "which are not finite; then nothing was changed.")
      .def("block_table", &block_table, "batch_row"_a = 0,
           "Page of each block of a batch row. Raises IndexError.");
}

}  // namespace

void add_paged(nb::module_& module, const Process& process) {
  module.def(
      "split_block_table",
      [](int64_t block_size, const std::vector<int32_t>& block_table) {
        const SplitBlockTable split = take(split_block_table(block_size, block_table));
        return std::make_pair(split.block_size, split.block_table);
      },
      "block_size"_a, "block_table"_a,
      "(size, table) for kernels of other programs, which take blocks of 32, 16 or 8 tokens only: "
      "the largest of these that divides block_size, and the table in which a page is the row of "
      "its parts. Pages [num_pages, block_size, ...] are then [num_pages * parts, size, "
      "...].\n\nRaises ValueError for a block_size that 8 does not divide, and for ids out of "
      "range.");
  nb::class_<PyPaged> cls(
      module, "PagedKVCache", nb::is_weak_referenceable(),
      "Keys and values of one layer for a batch of sequences of equal length, in pages, with "
      "attention over them.\n\n"
      "Rows are [B, H_kv, T, D]; B, H_kv, the head dims and dtypes (float32, float16, bfloat16) "
      "are "
      "fixed by the first write, before which nothing is allocated. A cache may be used by several "
      "threads; they wait for each other, and run without the GIL.");
  cls.def(
         "__init__",
         [process](PyPaged* self, nb::kwargs options) {
           const GivenRows given = take_rows(options);
           const auto all = paged_options(process, options, Reads::of_constructor);
           new (self) PyPaged(make_paged(all, process, given), family_of(given));
         },
         nb::sig(
             "def __init__(self, *, block_size: int | None = None, num_blocks: int | None = None, "
             "keys: kvik._types.ArrayLike | None = None, values: kvik._types.ArrayLike | None = "
             "None, offset: int | None = None, turboquant_config: dict[str, object] | None = None, "
             "kv_quant_config: dict[str, object] | str | None = None, kv_format: str | None = "
             "None, "
             "dynamic: bool | None = "
             "None, context_window: int | None = None, max_tokens: int | None = None, "
             "attention_impl: str | None = None, sliding_window: int | None = None, max_q_len: "
             "int | None = None, partitioned: bool | None = None, partition_threshold: int | "
             "None = None, forbid_dense_fallback: bool | None = None, forbid_active_arrays: "
             "bool | None = None) -> None"),
         "block_size (16 tokens), num_blocks (1024, of each batch row). dynamic: whether "
         "num_blocks grows, up to context_window or max_tokens (2**20) tokens. keys, values, "
         "offset: "
         "rows to copy in, the first offset of them (None: all).\n\n"
         "Low-bit storage, of which the first given wins: turboquant_config, a dict with k_quant "
         "(q8_0, uint8, q5_0, q4_0, int2) and v_quant (q2_0, q3_0, q4_0, q5_0, q8_0); "
         "kv_quant_config, a mode (q8, q6, q4, off) or a dict with mode; kv_format, any two "
         "formats such as \"tq8:tcq4\", alone. attention_impl: the route. \"paged\" (None, "
         "\"packed\", \"auto\") reads the pages or the codes in them; \"gather\" (\"mirror\") "
         "reads a "
         "copy, which a low-bit cache keeps decoded, in the dtype of the config's \"dtype\" (None: "
         "of the rows), and to which a call adds the new rows. "
         "sliding_window: overrides that of every call. max_q_len, partitioned, "
         "partition_threshold (2048): when paged_attention declines. forbid_dense_fallback, "
         "forbid_active_arrays: make these errors. What is None is read from the environment, else "
         "has its default.\n\nRaises ValueError naming the option.")
      .def_static(
          "from_cache",
          [process](nb::handle entry, const nb::kwargs& options) {
            return paged_from_cache(process, entry, options);
          },
          "entry"_a, "options"_a, nb::rv_policy::take_ownership,
          nb::sig("def from_cache(entry: object, **options: object) -> PagedKVCache"),
          "A cache with a copy of the rows of another, ours or whatever has keys, values and "
          "offset. Options as of the constructor.")
      .def("update_without_fetch", &update_without_fetch, "keys"_a, "values"_a,
           "phase"_a = "unknown",
           "Appends keys [B, H_kv, T, Dk] and values [B, H_kv, T, Dv] to the pages.\n\nRaises "
           "ValueError for shapes or dtypes that differ from the first write, for head dims that a "
           "low-bit format does not store and for numbers that it refuses (infinity, NaN), "
           "OutOfPagesError when the capacity is full and may not grow, MemoryError; then nothing "
           "was changed.")
      .def("update_and_fetch", &update_and_fetch, "keys"_a, "values"_a, "phase"_a = "unknown",
           nb::sig("def update_and_fetch(self, keys: kvik._types.ArrayLike, values: "
                   "kvik._types.ArrayLike, phase: str = 'unknown') -> tuple[kvik._types.Array, "
                   "kvik._types.Array]"),
           "The same, and returns a copy of all rows: O(offset).")
      .def(
          "reconfigure",
          [](PyPaged& held, const nb::kwargs& given) {
            const auto options =
                changed_options(locked(held, [](PagedKVCache& c) { return c.options(); }), given);
            check(locked(held, [&](PagedKVCache& c) -> Status {
              if (!c.empty() && options.block_size != c.block_size()) {
                return invalid_argument("the rows lie in blocks of " +
                                        std::to_string(c.block_size()) +
                                        " tokens; empty the cache to change block_size");
              }
              return c.reconfigure(options);
            }));
          },
          "options"_a, nb::sig("def reconfigure(self, **options: object) -> None"),
          "Takes the options of the constructor that are given; with rows, all but the block size. "
          "Rows "
          "that another storage is asked for are decoded and encoded anew. kv_quant_config \"off\" "
          "and "
          "turboquant_config False end theirs. Raises as the constructor; then nothing was "
          "changed.")
      .def(
          "paged_stats",
          [](PyPaged& held) {
            return dict_of(to_json(locked(held, [](PagedKVCache& c) { return c.paged_stats(); })));
          },
          "The counters as a dict; times in seconds, sizes in bytes, lengths in tokens.")
      .def_prop_ro(
          "paged_attention_last_bailout", &last_bailout,
          nb::sig("def paged_attention_last_bailout(self) -> dict[str, object] | None"),
          "The last call that was not served, or not as asked for: phase, reason, impl, and "
          "the numbers that decided.");
  add_cache_members(
      cls,
      "(keys, values): a copy of the valid rows, decoded where they are stored in low bits; (None, "
      "None) while empty. Setting replaces all "
      "rows; None or (None, None) empties the cache.",
      "(block_size, num_blocks, offset) as strings. Without rows a plan of the state to come; with "
      "rows only the offset is taken, downwards. Raises ValueError for what does not fit; then "
      "nothing was changed.");
  add_attention(cls, process);
  add_pages(cls);
  add_graph_members(cls, process);
}

}  // namespace kvik::python
