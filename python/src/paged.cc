// PagedKVCache.
#include <nanobind/stl/pair.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "attention_call.h"
#include "cache_members.h"
#include "graph.h"

namespace nb = nanobind;

namespace kvik::python {
namespace {

// The keyword arguments that are rows, taken out of the options.
struct GivenRows {
  std::optional<InputRows> rows;
  std::optional<int64_t> offset;
};
GivenRows take_rows(nb::dict& options) {
  GivenRows given;
  const auto pop = [&](const char* name) { return options.attr("pop")(name, nb::none()); };
  const nb::object keys = pop("keys");
  const nb::object values = pop("values");
  const nb::object offset = pop("offset");
  if (keys.is_none() != values.is_none()) {
    throw nb::value_error("give both keys and values, or none of them");
  }
  if (!offset.is_none()) given.offset = to_integer(offset, "offset");
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

PyPaged* paged_from_cache(const Process& process, const Arguments& a) {
  const nb::object entry = a.object("entry");
  const PagedKVCacheOptions options = paged_options(process, a.others(), Reads::of_constructor);
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

void update_without_fetch(PyPaged& held, const Arguments& a) {
  const InputRows rows = import_rows(a.object("keys"), a.object("values"));
  const PagedPhase phase = phase_of(a.text("phase", "unknown"));
  check(locked(held, [&](PagedKVCache& cache) {
    return cache.update_without_fetch(rows.keys.view, rows.values.view, phase);
  }));
  if (rows.family()) held.family = *rows.family();
}

nb::tuple update_and_fetch(PyPaged& held, const Arguments& a) {
  const InputRows rows = import_rows(a.object("keys"), a.object("values"));
  const PagedPhase phase = phase_of(a.text("phase", "unknown"));
  auto all = take(locked(held, [&](PagedKVCache& cache) {
    return cache.update_and_fetch(rows.keys.view, rows.values.view, phase);
  }));
  if (rows.family()) held.family = *rows.family();
  return export_pair(all, held.family, Access::read_only);
}

std::optional<int64_t> head_dim_v(PyPaged& held) {
  const auto shape = locked(held, [](PagedKVCache& c) { return c.shape(); });
  return shape ? std::optional(shape->head_dim_v) : std::nullopt;
}

// Whether the call has nothing to compute, its shapes being right. A cache that has never held a
// row has no shapes.
bool is_empty_call(PyPaged& held, const PagedAttentionCall& call) {
  const auto shape = locked(held, [](PagedKVCache& c) { return c.shape(); });
  const ConstTensorView& q = call.queries;
  if (!shape || (q.dim(2) > 0 && shape->head_dim_v > 0)) return false;
  const auto refuse = [](const std::string& what) { throw nb::value_error(what.c_str()); };
  if (q.dim(0) != shape->batch) {
    refuse("queries have " + std::to_string(q.dim(0)) + " batch rows; the cache holds " +
           std::to_string(shape->batch));
  }
  if (q.dim(1) < 1 || q.dim(1) % shape->num_kv_heads != 0) {
    refuse("queries have " + std::to_string(q.dim(1)) + " heads; a multiple of the " +
           std::to_string(shape->num_kv_heads) + " KV heads is needed");
  }
  if (q.dim(3) != shape->head_dim_k || call.out.dim(3) != shape->head_dim_v) {
    refuse("queries and out have head dims " + std::to_string(q.dim(3)) + " and " +
           std::to_string(call.out.dim(3)) + "; the cache holds " +
           std::to_string(shape->head_dim_k) + " and " + std::to_string(shape->head_dim_v));
  }
  for (int d = 0; d < 3; ++d) {
    if (q.dim(d) != call.out.dim(d)) {
      refuse("queries and out differ in dimension " + std::to_string(d));
    }
  }
  check_mask_and_sinks(call, locked(held, [](PagedKVCache& c) { return c.offset(); }));
  return true;
}

nb::object paged_attention(const Process& process, PyPaged& held, const CallArguments& arguments) {
  const BoundCall bound(arguments, NoMask::causal, head_dim_v(held));
  if (is_empty_call(held, bound.call())) return bound.result();
  const bool served =
      take(locked(held, [&](PagedKVCache& cache) { return cache.paged_attention(bound.call()); }));
  process.fallbacks->warn();
  return served ? bound.result() : nb::none();
}

nb::object attend(const Process& process, PyPaged& held, const CallArguments& arguments) {
  const BoundCall bound(arguments, NoMask::causal, head_dim_v(held));
  if (is_empty_call(held, bound.call())) return bound.result();
  check(locked(held, [&](PagedKVCache& cache) { return cache.attend(bound.call()); }));
  process.fallbacks->warn();
  return bound.result();
}

// Binds a function of the arguments of an attention call.
using Attend = nb::object (*)(const Process&, PyPaged&, const CallArguments&);
auto attention_method(const Process& process, Attend function) {
  return [process, function](PyPaged& held, const Arguments& a) {
    std::optional<int64_t> sliding_window = a.optional_integer("sliding_window");
    // As MTPLX says that there is none.
    if (sliding_window && *sliding_window <= 0) sliding_window.reset();
    return function(
        process, held,
        {a.object("queries"), a.optional_number("scale"), a.object("mask"), sliding_window,
         a.optional_text("impl_override"), a.object("sinks"), a.number("softcap", 0),
         phase_of(a.text("phase", "unknown")), a.object("out")});
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

void add_attention(nb::class_<PyPaged>& cls, const Process& process) {
  def_method(
      cls,
      "def paged_attention(self, queries: kvik._types.ArrayLike, scale: float | None = None, "
      "sliding_window: int | None = None, mask: kvik._types.ArrayLike | str | None = None, "
      "impl_override: str | None = None, sinks: kvik._types.ArrayLike | None = None, *, "
      "softcap: float = 0.0, phase: str = 'unknown', out: kvik._types.ArrayLike | None = "
      "None) -> kvik._types.Array | None",
      attention_method(process, &paged_attention),
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
      "No queries give an empty array. out may share memory with queries and mask.\n\n"
      "Returns None where paged attention declines (see paged_attention_last_bailout): an empty "
      "cache that has never held a row, more than max_q_len, a mask that adds other numbers. "
      "Raises ValueError "
      "for shapes that do not fit. Runs without the GIL.");
  def_method(
      cls,
      "def attend(self, queries: kvik._types.ArrayLike, scale: float | None = None, "
      "sliding_window: int | None = None, mask: kvik._types.ArrayLike | str | None = None, "
      "impl_override: str | None = None, sinks: kvik._types.ArrayLike | None = None, *, "
      "softcap: float = 0.0, phase: str = 'unknown', out: kvik._types.ArrayLike | None = "
      "None) -> kvik._types.Array",
      attention_method(process, &attend),
      "As paged_attention, but what that declines is served another way, counted and warned of: "
      "more than max_q_len queries over gathered rows (of a low-bit cache by the request's route), "
      "a "
      "mask that adds other numbers in plain loops, slowly. Raises UnsupportedError where there is "
      "no such fallback, or it is forbidden.");
}

}  // namespace

void add_paged(nb::module_& module, const Process& process) {
  def_function(
      module,
      "def split_block_table(block_size: int, block_table: collections.abc.Sequence[int]) -> "
      "tuple[int, list[int]]",
      [](const Arguments& a) {
        const SplitBlockTable split = take(split_block_table(
            a.integer("block_size"), to_integers(a.object("block_table"), "block_table")));
        return std::make_pair(split.block_size, split.block_table);
      },
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
  // The options are those of a table, which says what is wrong with one.
  cls.def(
      "__init__",
      [process](PyPaged* self, const nb::args& args, const nb::kwargs& given_options) {
        if (args.size() > 0) {
          throw nb::type_error("PagedKVCache() takes its options by keyword only");
        }
        nb::dict options;
        options.update(given_options);
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
      "has its default.\n\nRaises ValueError naming the option.");
  def_static(
      cls, "def from_cache(entry: object, **options: object) -> PagedKVCache",
      [process](const Arguments& a) { return paged_from_cache(process, a); },
      "A cache with a copy of the rows of another, ours or whatever has keys, values and "
      "offset. Options as of the constructor.");
  def_method(
      cls,
      "def update_without_fetch(self, keys: kvik._types.ArrayLike, values: kvik._types.ArrayLike, "
      "phase: str = 'unknown') -> None",
      &update_without_fetch,
      "Appends keys [B, H_kv, T, Dk] and values [B, H_kv, T, Dv] to the pages.\n\nRaises "
      "ValueError for shapes or dtypes that differ from the first write, for head dims that a "
      "low-bit format does not store and for numbers that it refuses (infinity, NaN), "
      "OutOfPagesError when the capacity is full and may not grow, MemoryError; then nothing "
      "was changed.");
  def_method(
      cls,
      "def update_and_fetch(self, keys: kvik._types.ArrayLike, values: kvik._types.ArrayLike, "
      "phase: str = 'unknown') -> tuple[kvik._types.Array, kvik._types.Array]",
      &update_and_fetch, "The same, and returns a copy of all rows: O(offset).");
  def_method(
      cls, "def reconfigure(self, **options: object) -> None",
      [](PyPaged& held, const Arguments& a) {
        const auto options =
            changed_options(locked(held, [](PagedKVCache& c) { return c.options(); }), a.others());
        check(locked(held, [&](PagedKVCache& c) -> Status {
          if (!c.empty() && options.block_size != c.block_size()) {
            return invalid_argument("the rows lie in blocks of " + std::to_string(c.block_size()) +
                                    " tokens; empty the cache to change block_size");
          }
          return c.reconfigure(options);
        }));
      },
      "Takes the options of the constructor that are given; with rows, all but the block size. "
      "Rows "
      "that another storage is asked for are decoded and encoded anew. kv_quant_config \"off\" "
      "and "
      "turboquant_config False end theirs. Raises as the constructor; then nothing was "
      "changed.");
  def_method(
      cls, "def paged_stats(self) -> dict",
      [](PyPaged& held, const Arguments&) {
        return dict_of(to_json(locked(held, [](PagedKVCache& c) { return c.paged_stats(); })));
      },
      "The counters as a dict; times in seconds, sizes in bytes, lengths in tokens.");
  cls.def_prop_ro(
         "_keywords",
         [](PyPaged& held) {
           return keywords_of(locked(held, [](PagedKVCache& c) {
             PagedKVCacheOptions options = c.options();
             options.num_blocks = c.num_blocks();
             return options;
           }));
         },
         nb::sig("def _keywords(self) -> dict[str, object]"),
         "Keyword arguments of the constructor that make a cache like this one, without rows.")
      .def_prop_ro(
          "paged_attention_last_bailout", &last_bailout,
          nb::sig("def paged_attention_last_bailout(self) -> dict[str, object] | None"),
          "The last call that was not served, or not as asked for: phase, reason, impl, and "
          "the numbers that decided.");
  add_cache_members(
      cls, "def fork(self) -> PagedKVCache",
      "(keys, values): a copy of the valid rows, decoded where they are stored in low bits; (None, "
      "None) while empty. Setting replaces all "
      "rows; None or (None, None) empties the cache.",
      "(block_size, num_blocks, offset) as strings. Without rows a plan of the state to come; with "
      "rows only the offset is taken, downwards. Raises ValueError for what does not fit; then "
      "nothing was changed.");
  add_attention(cls, process);
  add_page_members(cls);
  add_graph_members(cls, process);
}

}  // namespace kvik::python
