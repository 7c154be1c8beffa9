// The checked door: every rule that the kernels rely on without looking.
#include <cmath>
#include <string>
#include <string_view>

#include "attention/overlap.h"
#include "attention/step_check.h"
#include "kvik/attention/attention.h"
#include "kvik/core/checked_math.h"

namespace kvik {
namespace {

std::string num(int64_t x) { return std::to_string(x); }

std::string text_of(std::optional<int> window) {
  return window ? num(*window) + " tokens" : std::string("none");
}

// A good call builds no string: names become text only in messages.
std::string operator+(std::string_view name, const char* rest) { return std::string(name) + rest; }

Status check_tensor(std::string_view name, const ConstTensorView& t, int rank, bool is_output) {
  if (t.device != Device::cpu) {
    return unsupported(name + " lives on another device; this back end reads CPU memory only");
  }
  if (t.rank != rank) {
    return invalid_argument(name + " has " + num(t.rank) + " dimensions; it needs " + num(rank));
  }
  int64_t last_element = 0;
  bool has_elements = true;
  for (int d = 0; d < rank; ++d) {
    if (t.dim(d) < 0) return invalid_argument(name + " has a negative dimension " + num(t.dim(d)));
    if (t.dim(d) == 0) has_elements = false;
    if (t.dim(d) <= 1) continue;
    if (t.step(d) < 0 || (is_output && t.step(d) == 0)) {
      return invalid_argument(name + " has stride " + num(t.step(d)) + " in dimension " + num(d));
    }
    const auto reach = checked_product({t.dim(d) - 1, t.step(d)});
    const auto sum = reach ? checked_sum({last_element, *reach}) : std::nullopt;
    if (!sum) return invalid_argument(name + " spans more than 2^63 elements");
    last_element = *sum;
  }
  const auto elements = checked_sum({last_element, 1});
  if (!elements || !checked_product({*elements, dtype_bytes(t.dtype)})) {
    return invalid_argument(name + " spans more than 2^63 bytes");
  }
  if (has_elements && t.data == nullptr) return invalid_argument(name + " has a null pointer");
  return {};
}

// Kernels read and write rows of head_dim consecutive elements.
Status check_unit_stride(std::string_view name, const ConstTensorView& t) {
  if (t.dim(t.rank - 1) > 1 && t.step(t.rank - 1) != 1) {
    return invalid_argument(name + " has stride " + num(t.step(t.rank - 1)) +
                            " in its last dimension; it must be 1 (copy it row by row first)");
  }
  return {};
}

// Rows of an output must not lie over each other.
Status check_disjoint_rows(std::string_view name, const ConstTensorView& t, int64_t row) {
  const bool heads_apart = t.dim(1) <= 1 || t.step(1) >= row;
  const int64_t query = t.dim(1) <= 1 ? row : (t.dim(1) - 1) * t.step(1) + row;
  const int64_t queries = t.dim(0) <= 1 ? row : (t.dim(0) - 1) * t.step(0) + row;
  const bool head_inside = t.dim(0) <= 1 || t.step(0) >= query;
  const bool query_inside = t.dim(0) <= 1 || t.dim(1) <= 1 || t.step(1) >= queries;
  if (heads_apart && (head_inside || query_inside)) return {};
  return invalid_argument(name + " has strides that lay rows over each other");
}

Status check_indptr(std::string_view name, std::span<const int32_t> indptr, int64_t num_seqs,
                    int64_t limit) {
  if (static_cast<int64_t>(indptr.size()) != num_seqs + 1) {
    return invalid_argument(name + " has " + num(static_cast<int64_t>(indptr.size())) +
                            " entries; " + num(num_seqs) + " sequences need " + num(num_seqs + 1));
  }
  for (size_t i = 0; i < indptr.size(); ++i) {
    if (indptr[i] < (i == 0 ? 0 : indptr[i - 1])) {
      return invalid_argument(name + "[" + num(static_cast<int64_t>(i)) + "] is " + num(indptr[i]) +
                              "; entries start at 0 or more and never decrease");
    }
  }
  if (indptr.back() > limit) {
    return invalid_argument(name + " ends at " + num(indptr.back()) + ", past " + num(limit));
  }
  return {};
}

Status check_stride(std::string_view name, const char* per, int64_t stride, int64_t least,
                    int64_t multiple, int64_t count) {
  if (stride < 0 || (count > 1 && stride < least)) {
    return invalid_argument(name + "_stride per " + per + " is " + num(stride) +
                            " bytes; rows need " + num(least));
  }
  if (stride % multiple != 0) {
    return invalid_argument(name + "_stride per " + per + " is " + num(stride) +
                            " bytes; it must be a multiple of " + num(multiple));
  }
  if (!checked_product({stride, count})) {
    return invalid_argument(name + "_stride per " + per + " times " + num(count) +
                            " exceeds 64 bits");
  }
  return {};
}

// Pointer, alignment and strides of K or V. `tile` = bytes of one tile, `row` = bytes of one plain
// row.
Status check_storage(std::string_view name, const KvView& view, const std::byte* data,
                     std::array<int64_t, 2> stride, int64_t tile, int64_t row, KvCode code) {
  const bool tiles = view.layout == KvLayout::tiles;
  const int64_t unit = tiles ? view.block_size / kTileTokens * tile : row;
  const int64_t multiple = tiles ? tile_alignment(code) : kv_code_bytes(code);
  if (Status s = check_stride(name, "head", stride[1], unit, multiple, view.num_kv_heads);
      !s.ok()) {
    return s;
  }
  if (Status s =
          check_stride(name, tiles ? "page" : "token", stride[0], 0, multiple, view.num_pages);
      !s.ok()) {
    return s;
  }
  if (!checked_sum({stride[0] * view.num_pages, stride[1] * view.num_kv_heads, unit})) {
    return invalid_argument(name + " of a segment spans more than 2^63 bytes");
  }
  if (unit > 0 && view.num_pages > 0 && data == nullptr) {
    return invalid_argument(name + " of a segment has a null pointer");
  }
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(multiple) != 0) {
    return invalid_argument(name + " of a segment is not aligned to " + num(multiple) + " bytes");
  }
  return {};
}

// "[3] is ", for messages about one entry of an array.
std::string at(size_t index) { return "[" + num(static_cast<int64_t>(index)) + "] is "; }

Status check_sequences(const KvView& view, int64_t num_seqs) {
  const bool tiles = view.layout == KvLayout::tiles;
  const int64_t limit = tiles ? static_cast<int64_t>(view.page_ids.size()) : view.num_pages;
  if (static_cast<int64_t>(view.kv_len.size()) != num_seqs ||
      static_cast<int64_t>(view.first_pos.size()) != num_seqs) {
    return invalid_argument("kv_len and first_pos need one entry for each of the " + num(num_seqs) +
                            " sequences");
  }
  if (Status s = check_indptr("page_indptr", view.page_indptr, num_seqs, limit); !s.ok()) return s;
  for (size_t b = 0; b < static_cast<size_t>(num_seqs); ++b) {
    const int64_t length = view.kv_len[b];
    const int64_t first = view.first_pos[b];
    if (length < 0) return invalid_argument("kv_len" + at(b) + num(length));
    if (first < 0 || (tiles && first % kTileTokens != 0)) {
      return invalid_argument("first_pos" + at(b) + num(first) +
                              "; it must be 0 or a positive multiple of 16");
    }
    if (first + length > INT32_MAX) {
      return invalid_argument("kv_len" + at(b) + num(length) + "; positions must stay below 2^31");
    }
    const int64_t have = view.page_indptr[b + 1] - view.page_indptr[b];
    const int64_t need = tiles ? ceil_div(length, view.block_size) : length;
    if (need > have) {
      return invalid_argument("kv_len" + at(b) + num(length) + ": needs " + num(need) + " " +
                              (tiles ? "blocks" : "rows") + ", its table has " + num(have));
    }
  }
  if (!tiles) return {};
  for (size_t i = 0; i < static_cast<size_t>(view.page_indptr.back()); ++i) {
    if (view.page_ids[i] < 0 || view.page_ids[i] >= view.num_pages) {
      return invalid_argument("page_ids[" + num(static_cast<int64_t>(i)) + "] is " +
                              num(view.page_ids[i]) + "; the pool has pages 0 to " +
                              num(view.num_pages - 1));
    }
  }
  return {};
}

Status check_shape(const KvView& view, int64_t num_heads, int64_t head_dim_k, int64_t head_dim_v) {
  if (view.num_kv_heads < 1 || num_heads < 1 || num_heads % view.num_kv_heads != 0) {
    return invalid_argument("q has " + num(num_heads) + " heads; that is not a multiple of the " +
                            num(view.num_kv_heads) + " KV heads");
  }
  if (view.head_dim_k < 0 || view.head_dim_k > kMaxHeadDim || view.head_dim_v < 0 ||
      view.head_dim_v > kMaxHeadDim) {
    return invalid_argument("head dims " + num(view.head_dim_k) + " and " + num(view.head_dim_v) +
                            " must lie in 0 to " + num(kMaxHeadDim));
  }
  if (view.head_dim_k != head_dim_k) {
    return invalid_argument("q has head_dim " + num(head_dim_k) + ", the keys have " +
                            num(view.head_dim_k));
  }
  if (view.head_dim_v != head_dim_v) {
    return invalid_argument("out has head_dim " + num(head_dim_v) + ", the values have " +
                            num(view.head_dim_v));
  }
  if (view.num_pages < 0) return invalid_argument("num_pages is " + num(view.num_pages));
  if (view.layout == KvLayout::tiles &&
      (view.block_size < kTileTokens || view.block_size % kTileTokens != 0)) {
    return invalid_argument("block_size is " + num(view.block_size) +
                            "; the tile layout needs a positive multiple of 16");
  }
  return {};
}

// Of plain codes, the only ones in rows.
int64_t row_bytes(KvCode code, int head_dim) {
  return is_packed(code) ? 0 : head_dim * kv_code_bytes(code);
}

// Codes that the layout, the head dims and the side do not allow.
Status check_format(const KvView& view) {
  const KvFormat format = view.format;
  if (view.layout == KvLayout::rows && (is_packed(format.k) || is_packed(format.v))) {
    return unsupported("row-major storage holds f32, f16 and bf16 only; " +
                       std::string(kv_code_name(is_packed(format.k) ? format.k : format.v)) +
                       " lives in tiles (store it in a cache)");
  }
  if (Status s = check_keys(format.k, view.head_dim_k); !s.ok()) return s;
  if (Status s = check_values(format.v, view.head_dim_v); !s.ok()) return s;
  if (is_rotated(format.k) && view.key_transform == nullptr) {
    return invalid_argument(std::string(kv_code_name(format.k)) +
                            " keys are stored rotated, and key_transform is null; take the view of "
                            "a cache, or set rotated_keys(head_dim_k)");
  }
  return {};
}

Status check_view(const KvView& view) {
  if (Status s = check_format(view); !s.ok()) return s;
  if (Status s = check_storage("k", view, view.k, view.k_stride,
                               tile_bytes_k(view.format.k, view.head_dim_k),
                               row_bytes(view.format.k, view.head_dim_k), view.format.k);
      !s.ok()) {
    return s;
  }
  if (Status s = check_storage("v", view, view.v, view.v_stride,
                               tile_bytes_v(view.format.v, view.head_dim_v),
                               row_bytes(view.format.v, view.head_dim_v), view.format.v);
      !s.ok()) {
    return s;
  }
  if (const KeyTransform* t = view.key_transform; t != nullptr) {
    const bool known = t->frame == 0 || t->frame == 128 || t->frame == 256 || t->frame == 512;
    if (t->prepare == nullptr || !known) {
      return invalid_argument("key_transform has frame " + num(t->frame) +
                              "; it needs a prepare function and a frame of 0, 128, 256 or 512");
    }
  }
  return {};
}

// The window is said once: by the views, which then agree, or by the params.
Status check_window(const KvView& view, const AttentionCall& call) {
  const std::optional<int>& of_first = call.segments[0].view.window;
  if (view.window != of_first) {
    return invalid_argument("its view has a window of " + text_of(view.window) +
                            ", that of the first segment " + text_of(of_first));
  }
  if (!view.window) return {};
  if (*view.window < 1) {
    return invalid_argument("window is " + num(*view.window) + "; it counts tokens, at least 1");
  }
  const std::optional<int>& of_params = call.params.window;
  if (!of_params || *of_params <= *view.window) return {};
  return invalid_argument("params.window is " + num(*of_params) +
                          "; rows are kept for a window of " + num(*view.window) +
                          " only. Leave params.window out, or give the cache the larger window");
}

Status check_segments(const AttentionCall& call) {
  if (call.segments.empty())
    return invalid_argument("segments is empty; a call reads at least one");
  int64_t covered = 0;
  for (size_t i = 0; i < call.segments.size(); ++i) {
    const Segment& segment = call.segments[i];
    Status s = internal::check_step_open(segment.view);
    if (s.ok()) s = check_shape(segment.view, call.q.dim(1), call.q.dim(2), call.out.dim(2));
    if (s.ok() && segment.view.num_kv_heads != call.segments[0].view.num_kv_heads) {
      s = invalid_argument("num_kv_heads differs from that of the first segment");
    }
    if (s.ok()) s = check_view(segment.view);
    if (s.ok()) s = check_sequences(segment.view, call.num_seqs());
    if (s.ok() && (segment.begin < 0 || segment.end < segment.begin)) {
      s = invalid_argument("begin " + num(segment.begin) + " and end " + num(segment.end) +
                           " are no range of positions");
    }
    if (s.ok() && segment.newest && *segment.newest < 0) {
      s = invalid_argument("newest is " + num(*segment.newest));
    }
    if (s.ok() && !segment.newest && segment.begin < covered) {
      s = invalid_argument("begins at " + num(segment.begin) + ", before the end " + num(covered) +
                           " of the segment before it");
    }
    if (s.ok()) s = check_window(segment.view, call);
    if (!s.ok()) {
      return {s.code(), "segment " + num(static_cast<int64_t>(i)) + ": " + s.message()};
    }
    if (!segment.newest) covered = segment.end;
  }
  return {};
}

// Rows of views of a cache; asked once all segments are known to fit the call.
Status check_steps(const AttentionCall& call) {
  for (size_t i = 0; i < call.segments.size(); ++i) {
    const Status s = internal::check_step_rows(call.segments[i], call);
    if (!s.ok()) {
      return {s.code(), "segment " + num(static_cast<int64_t>(i)) + ": " + s.message()};
    }
  }
  return {};
}

Status check_params(const AttentionParams& params, int64_t num_heads) {
  if (params.scale && !std::isfinite(*params.scale)) return invalid_argument("scale is not finite");
  if (!std::isfinite(params.softcap) || params.softcap < 0) {
    return invalid_argument("softcap must be 0 (none) or a positive number");
  }
  if (params.window && *params.window < 0) {
    return invalid_argument("window is " + num(*params.window) + "; it counts tokens");
  }
  const auto num_sinks = static_cast<int64_t>(params.sinks.size());
  if (num_sinks != 0 && num_sinks != num_heads) {
    return invalid_argument("sinks has " + num(num_sinks) + " entries; " + num(num_heads) +
                            " query heads need one each, or none at all");
  }
  for (const float sink : params.sinks) {
    if (std::isnan(sink) || sink == INFINITY) {
      return invalid_argument("sinks must be finite or minus infinity");
    }
  }
  return {};
}

Status check_lse(std::string_view name, const std::optional<TensorView>& lse,
                 const ConstTensorView& q) {
  if (!lse) return {};
  if (Status s = check_tensor(name, *lse, 2, true); !s.ok()) return s;
  if (lse->dtype != DType::f32) return invalid_argument(name + " must be f32");
  if (lse->dim(0) != q.dim(0) || lse->dim(1) != q.dim(1)) {
    return invalid_argument(name + " has shape [" + num(lse->dim(0)) + ", " + num(lse->dim(1)) +
                            "]; q asks for [" + num(q.dim(0)) + ", " + num(q.dim(1)) + "]");
  }
  return check_disjoint_rows(name, *lse, 1);
}

// Tasks write their rows while others still read: an output has memory of its own.
Status check_apart(std::string_view name, const ConstTensorView& output,
                   const AttentionCall& call) {
  const internal::RowGrid rows = internal::grid_of(output);
  const auto shares = [&](const char* input) {
    return invalid_argument(name + " shares memory with " + input +
                            "; give an output memory of its own");
  };
  if (internal::may_overlap(rows, internal::grid_of(call.q))) return shares("q");
  if (internal::may_overlap(rows, internal::grid_of(call.params.sinks))) return shares("sinks");
  for (const Segment& segment : call.segments) {
    const KvView& view = segment.view;
    if (internal::may_overlap(rows, internal::grid_of_k(view))) return shares("the keys");
    if (internal::may_overlap(rows, internal::grid_of_v(view))) return shares("the values");
    for (const auto& array : {view.page_indptr, view.page_ids, view.first_pos, view.kv_len}) {
      if (internal::may_overlap(rows, internal::grid_of(array))) return shares("a block table");
    }
  }
  return {};
}

Status check_outputs_apart(const AttentionCall& call) {
  if (Status s = check_apart("out", call.out, call); !s.ok()) return s;
  const internal::RowGrid out = internal::grid_of(ConstTensorView(call.out));
  for (const auto& [name, lse] :
       {std::pair<std::string_view, const std::optional<TensorView>*>{"lse", &call.lse},
        {"lse_keys", &call.lse_keys}}) {
    if (!*lse) continue;
    if (Status s = check_apart(name, **lse, call); !s.ok()) return s;
    if (internal::may_overlap(out, internal::grid_of(ConstTensorView(**lse)))) {
      return invalid_argument(name + " shares memory with out");
    }
  }
  if (call.lse && call.lse_keys &&
      internal::may_overlap(internal::grid_of(ConstTensorView(*call.lse)),
                            internal::grid_of(ConstTensorView(*call.lse_keys)))) {
    return invalid_argument("lse_keys shares memory with lse");
  }
  return {};
}

}  // namespace

Status check(const AttentionCall& call) {
  if (Status s = check_tensor("q", call.q, 3, false); !s.ok()) return s;
  if (Status s = check_tensor("out", call.out, 3, true); !s.ok()) return s;
  if (Status s = check_unit_stride("q", call.q); !s.ok()) return s;
  if (Status s = check_unit_stride("out", call.out); !s.ok()) return s;
  if (call.out.dim(0) != call.q.dim(0) || call.out.dim(1) != call.q.dim(1)) {
    return invalid_argument("out has shape [" + num(call.out.dim(0)) + ", " + num(call.out.dim(1)) +
                            ", ..]; q asks for [" + num(call.q.dim(0)) + ", " + num(call.q.dim(1)) +
                            ", ..]");
  }
  if (Status s = check_disjoint_rows("out", call.out, call.out.dim(2)); !s.ok()) return s;
  if (call.q.dim(0) > INT32_MAX || call.q.dim(1) > INT32_MAX) {
    return invalid_argument("q has more than 2^31 queries or heads");
  }
  // Rows of a sequence are numbered in 32 bits.
  if (call.q.dim(0) * call.q.dim(1) > INT32_MAX) {
    return invalid_argument("q has " + num(call.q.dim(0)) + " queries of " + num(call.q.dim(1)) +
                            " heads; a call takes at most 2^31 - 1 rows (attend in parts)");
  }
  if (call.query_indptr.empty()) return invalid_argument("query_indptr is empty; it starts with 0");
  if (Status s = check_indptr("query_indptr", call.query_indptr, call.num_seqs(), call.q.dim(0));
      !s.ok()) {
    return s;
  }
  if (call.query_indptr.front() != 0 || call.query_indptr.back() != call.q.dim(0)) {
    return invalid_argument("query_indptr must run from 0 to the " + num(call.q.dim(0)) +
                            " queries of q");
  }
  if (Status s = check_segments(call); !s.ok()) return s;
  if (Status s = check_params(call.params, call.q.dim(1)); !s.ok()) return s;
  if (Status s = check_lse("lse", call.lse, call.q); !s.ok()) return s;
  if (Status s = check_lse("lse_keys", call.lse_keys, call.q); !s.ok()) return s;
  if (Status s = check_steps(call); !s.ok()) return s;
  return check_outputs_apart(call);
}

Result<KvView> rows_view(const ConstTensorView& k, const ConstTensorView& v,
                         std::span<const int32_t> row_indptr, std::span<const int32_t> kv_len,
                         std::span<const int32_t> first_pos) {
  if (Status s = check_tensor("k", k, 3, false); !s.ok()) return s;
  if (Status s = check_tensor("v", v, 3, false); !s.ok()) return s;
  if (Status s = check_unit_stride("k", k); !s.ok()) return s;
  if (Status s = check_unit_stride("v", v); !s.ok()) return s;
  if (k.dim(0) != v.dim(0) || k.dim(1) != v.dim(1)) {
    return invalid_argument("k and v differ in tokens (" + num(k.dim(0)) + ", " + num(v.dim(0)) +
                            ") or KV heads (" + num(k.dim(1)) + ", " + num(v.dim(1)) + ")");
  }
  if (k.dim(0) > INT32_MAX) return invalid_argument("k has more than 2^31 tokens");
  if (k.dim(1) < 1 || k.dim(1) > INT32_MAX || k.dim(2) > kMaxHeadDim || v.dim(2) > kMaxHeadDim) {
    return invalid_argument("k and v need at least one head and head dims up to " +
                            num(kMaxHeadDim));
  }
  KvView view;
  view.k = k.data;
  view.v = v.data;
  view.format = {kv_code_of(k.dtype), kv_code_of(v.dtype)};
  view.layout = KvLayout::rows;
  view.num_kv_heads = static_cast<int>(k.dim(1));
  view.head_dim_k = static_cast<int>(k.dim(2));
  view.head_dim_v = static_cast<int>(v.dim(2));
  view.num_pages = static_cast<int>(k.dim(0));
  view.k_stride = {k.step(0) * dtype_bytes(k.dtype), k.step(1) * dtype_bytes(k.dtype)};
  view.v_stride = {v.step(0) * dtype_bytes(v.dtype), v.step(1) * dtype_bytes(v.dtype)};
  view.page_indptr = row_indptr;
  view.first_pos = first_pos;
  view.kv_len = kv_len;
  return view;
}

}  // namespace kvik
