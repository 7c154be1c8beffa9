// kvik.attend: attention over arrays that belong to the caller.
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "arguments.h"
#include "attention_call.h"
#include "caches.h"
#include "errors.h"
#include "kvik/attention/attention.h"
#include "kvik/backend/backend.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvik::python {
namespace {

// Batch row b of [B, H, T, D] as [T, H, D].
template <class View>
View rows_by_token(const View& t, int64_t b) {
  View rows(t.dim(0) == 0 || t.data == nullptr ? nullptr : t.at(b), t.dtype,
            {t.dim(2), t.dim(1), t.dim(3)});
  rows.stride = {t.step(2), t.step(1), t.step(3)};
  return rows;
}

Status check_arrays(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                    const TensorView& out) {
  // No batch rows are as good as one; a cache would not take them.
  const auto one_row = [](ConstTensorView t) {
    if (t.dim(0) == 0) t.shape[0] = 1, t.shape[2] = 0;
    return t;
  };
  const bool has_batch = k.dim(0) > 0 || v.dim(0) > 0;
  Result<KvArrayShape> shape = has_batch ? shape_of(k, v) : shape_of(one_row(k), one_row(v));
  if (!shape.ok()) return shape.status();
  const auto num = [](int64_t x) { return std::to_string(x); };
  if (q.dim(0) != k.dim(0)) {
    return invalid_argument("queries have " + num(q.dim(0)) + " batch rows; keys have " +
                            num(k.dim(0)));
  }
  if (q.dim(1) < 1 || q.dim(1) % shape->num_kv_heads != 0) {
    return invalid_argument("queries have " + num(q.dim(1)) + " heads; a multiple of the " +
                            num(shape->num_kv_heads) + " KV heads is needed");
  }
  if (q.dim(3) != shape->head_dim_k || out.dim(3) != shape->head_dim_v) {
    return invalid_argument("queries and out have head dims " + num(q.dim(3)) + " and " +
                            num(out.dim(3)) + "; keys and values have " + num(shape->head_dim_k) +
                            " and " + num(shape->head_dim_v));
  }
  for (int d = 0; d < 3; ++d) {
    if (q.dim(d) != out.dim(d)) {
      return invalid_argument("queries and out differ in dimension " + num(d));
    }
  }
  if (k.dim(2) > std::numeric_limits<int32_t>::max() ||
      q.dim(2) > std::numeric_limits<int32_t>::max()) {
    return invalid_argument("queries and keys may have 2^31 - 1 tokens");
  }
  return {};
}

// A query that sees nothing gives zeros.
void clear(const TensorView& out) {
  for (int64_t b = 0; b < out.dim(0); ++b) {
    for (int64_t h = 0; h < out.dim(1); ++h) {
      for (int64_t j = 0; j < out.dim(2); ++j) {
        std::byte* const row = out.at(b, h) + j * out.step(2) * dtype_bytes(out.dtype);
        std::memset(row, 0, static_cast<size_t>(out.dim(3) * dtype_bytes(out.dtype)));
      }
    }
  }
}

// Without a mask array, straight from the caller's memory.
Status attend_arrays(Backend& backend, const PagedAttentionCall& call, const ConstTensorView& keys,
                     const ConstTensorView& values) {
  const auto num_keys = static_cast<int32_t>(keys.dim(2));
  const auto num_queries = static_cast<int32_t>(call.queries.dim(2));
  const std::array<int32_t, 2> row_indptr = {0, num_keys};
  const std::array<int32_t, 2> query_indptr = {0, num_queries};
  const std::array<int32_t, 1> kv_len = {num_keys};
  const std::array<int32_t, 1> first_pos = {0};
  for (int64_t b = 0; b < keys.dim(0); ++b) {
    Result<KvView> view =
        rows_view(rows_by_token(keys, b), rows_by_token(values, b), row_indptr, kv_len, first_pos);
    if (!view.ok()) return view.status();
    const std::array<Segment, 1> segments = {Segment{*view}};
    AttentionCall one;
    one.q = rows_by_token(call.queries, b);
    one.query_indptr = query_indptr;
    one.segments = segments;
    one.params.scale = call.scale;
    one.params.causal = call.mask.kind == AttentionMask::Kind::causal;
    if (call.sliding_window && *call.sliding_window < std::numeric_limits<int>::max()) {
      one.params.window = static_cast<int>(*call.sliding_window);
    }
    one.params.softcap = call.softcap;
    one.params.sinks = call.sinks;
    one.out = rows_by_token(call.out, b);
    if (Status status = attend(backend, one); !status.ok()) return status;
  }
  return {};
}

// With a mask array, from pages: there masks are cut into runs of keys.
Status attend_masked(const Process& process, const PagedAttentionCall& call,
                     const ConstTensorView& keys, const ConstTensorView& values) {
  PagedKVCacheOptions options;
  options.num_blocks =
      std::max<int64_t>(1, (keys.dim(2) + options.block_size - 1) / options.block_size);
  options.max_tokens = options.num_blocks * options.block_size;
  Result<PagedKVCache> cache = PagedKVCache::create(options, process.backend, keys, values);
  if (!cache.ok()) return cache.status();
  return cache->attend(call);
}

nb::object attend_plain(const Process& process, const CallArguments& arguments,
                        nb::handle key_array, nb::handle value_array) {
  const InputArray keys = for_attention(import_array(key_array, "keys", 4));
  const InputArray values = for_attention(import_array(value_array, "values", 4));
  BoundCall bound(arguments, NoMask::full, values.view.dim(3));
  bound.reads(keys.view);
  bound.reads(values.view);
  const PagedAttentionCall& call = bound.call();
  if (call.sliding_window && *call.sliding_window < 0) {
    throw nb::value_error("window counts keys; it must not be negative");
  }
  if (call.sliding_window && call.mask.kind == AttentionMask::Kind::full) {
    throw nb::value_error(
        "a window counts back from a query's position; it needs mask=\"causal\" "
        "or a mask array");
  }
  const auto run = [&]() -> Status {
    const nb::gil_scoped_release no_gil;
    if (Status status = check_arrays(call.queries, keys.view, values.view, call.out);
        !status.ok()) {
      return status;
    }
    const ConstTensorView out = call.out;
    if (out.dim(0) == 0 || out.dim(2) == 0 || out.dim(3) == 0) return {};
    if (keys.view.dim(2) == 0) {
      clear(call.out);
      return {};
    }
    // Starts the threads, where that can still be an error.
    if (Status status = process.backend->start(); !status.ok()) return status;
    return call.mask.kind == AttentionMask::Kind::array
               ? attend_masked(process, call, keys.view, values.view)
               : attend_arrays(*process.backend, call, keys.view, values.view);
  };
  check(run());
  const bool is_empty = call.out.dim(0) * call.out.dim(2) * call.out.dim(3) == 0;
  if (is_empty || keys.view.dim(2) == 0) check_mask_and_sinks(call, keys.view.dim(2));
  return bound.result();
}

}  // namespace

void add_attend(nb::module_& module, const Process& process) {
  def_function(
      module,
      "def attend(queries: kvik._types.ArrayLike, keys: kvik._types.ArrayLike, values: "
      "kvik._types.ArrayLike, scale: float | None = None, mask: kvik._types.ArrayLike | str | "
      "None = None, *, window: int | None = None, sinks: kvik._types.ArrayLike | None = None, "
      "softcap: float = 0.0, out: kvik._types.ArrayLike | None = None) -> kvik._types.Array",
      [process](const Arguments& a) {
        return attend_plain(process,
                            {a.object("queries"), a.optional_number("scale"), a.object("mask"),
                             a.optional_integer("window"), std::nullopt, a.object("sinks"),
                             a.number("softcap", 0), PagedPhase::unknown, a.object("out")},
                            a.object("keys"), a.object("values"));
      },
      "Attention of queries [B, H, q_len, Dk] over keys [B, H_kv, T, Dk] and values [B, H_kv, T, "
      "Dv], read where they lie; returns [B, H, q_len, Dv] in the dtype of the queries, or writes "
      "to out and returns it. Sums are float32.\n\n"
      "H is a multiple of H_kv. scale: None is 1 / sqrt(Dk). mask: None hides nothing; \"causal\" "
      "takes the queries as the newest q_len of T positions; an array as in "
      "PagedKVCache.paged_attention (q_len at most T). window: with a mask, the keys that a query "
      "sees, its own among them; 0 sees none. sinks: one logit per query head. softcap: scores "
      "become softcap * "
      "tanh(score / softcap). A query that sees nothing gives zeros. out may share memory with any "
      "of the other arrays: the result is as if it did not, at the cost of one copy of it.\n\n"
      "Raises ValueError for arrays that do not fit each other. Runs without the GIL.");
}

}  // namespace kvik::python
