// Attention of the paged one-layer cache: which route, which kernel calls, and what is counted.
#include <chrono>
#include <string>
#include <utility>

#include "kvik/attention/attention.h"
#include "kvik/core/checked_math.h"
#include "layer_cache/biased_attention.h"
#include "layer_cache/mask_runs.h"
#include "layer_cache/paged_state.h"

namespace kvik {

using internal::MaskBand;
using internal::PagedState;

namespace {

std::string num(int64_t x) { return std::to_string(x); }

// A call whose shapes fit the cache, and the rows of `num_seqs` sequences that it reads.
struct Work {
  Backend& backend;
  const PagedAttentionCall& call;
  std::optional<int> window;
  int64_t batch, num_heads, q_len, kv_len;
};

// Queries [first, last) of batch row b as [n, heads, D], heads [head, head + num_heads).
template <class View>
View queries_of(const View& t, int64_t b, int64_t head, int64_t num_heads, int64_t first,
                int64_t last) {
  View rows(t.data == nullptr ? nullptr : t.at(b, head), t.dtype,
            {last - first, num_heads, t.dim(3)});
  rows.device = t.device;
  rows.stride = {t.step(2), t.step(1), t.step(3)};
  if (rows.data != nullptr) rows.data += first * t.step(2) * dtype_bytes(t.dtype);
  return rows;
}

AttentionParams params_of(const Work& work) {
  AttentionParams params;
  params.scale = work.call.scale;
  params.causal = work.call.mask.kind == AttentionMask::Kind::causal;
  if (params.causal) params.window = work.window;
  params.softcap = work.call.softcap;
  params.sinks = work.call.sinks;
  return params;
}

// One sequence of a view of several.
KvView sequence_of(const KvView& view, int64_t b) {
  const auto i = static_cast<size_t>(b);
  KvView one = view;
  one.page_indptr = view.page_indptr.subspan(i, 2);
  one.first_pos = view.first_pos.subspan(i, 1);
  one.kv_len = view.kv_len.subspan(i, 1);
  return one;
}

Status attend_rows(const Work& work, const AttentionParams& params, const ConstTensorView& q,
                   const TensorView& out, std::span<const Segment> segments) {
  const std::array<int32_t, 2> indptr = {0, static_cast<int32_t>(q.dim(0))};
  AttentionCall call;
  call.q = q;
  call.query_indptr = indptr;
  call.segments = segments;
  call.params = params;
  call.out = out;
  return attend(work.backend, call);
}

// A band of queries: causal as a whole, or a call whose segments are the runs of visible keys.
Status attend_band(const Work& work, const KvView& view, int64_t b, int64_t head, int64_t num_heads,
                   const MaskBand& band) {
  AttentionParams params = params_of(work);
  params.causal = band.causal;
  params.window = band.window;
  if (!params.sinks.empty()) {
    params.sinks = params.sinks.subspan(static_cast<size_t>(head), static_cast<size_t>(num_heads));
  }
  std::vector<Segment> segments;
  if (band.causal) segments.push_back({view});
  for (const internal::KeyRun& run : band.runs) segments.push_back({view, run.begin, run.end});
  if (segments.empty()) segments.push_back({view, 0, 0});  // sees nothing: zeros
  return attend_rows(
      work, params, queries_of(work.call.queries, b, head, num_heads, band.first, band.last),
      queries_of(work.call.out, b, head, num_heads, band.first, band.last), segments);
}

// The KV head that a query head reads, alone.
KvView head_of(const KvView& view, int64_t num_heads, int64_t head) {
  const int64_t kv_head = head / (num_heads / view.num_kv_heads);
  KvView one = view;
  if (one.k != nullptr) one.k += kv_head * view.k_stride[1];
  if (one.v != nullptr) one.v += kv_head * view.v_stride[1];
  one.num_kv_heads = 1;
  return one;
}

// All heads of one batch row. `view` holds one sequence.
Status attend_sequence(const Work& work, const KvView& view, int64_t b) {
  const PagedAttentionCall& call = work.call;
  if (call.mask.kind != AttentionMask::Kind::array) {
    const Segment segment{view};
    return attend_rows(work, params_of(work),
                       queries_of(call.queries, b, 0, work.num_heads, 0, work.q_len),
                       queries_of(call.out, b, 0, work.num_heads, 0, work.q_len), {&segment, 1});
  }
  const bool per_head = internal::is_per_head(call.mask.array);
  for (int64_t head = 0; head < (per_head ? work.num_heads : 1); ++head) {
    const KvView rows = per_head ? head_of(view, work.num_heads, head) : view;
    const int64_t num_heads = per_head ? 1 : work.num_heads;
    for (const MaskBand& band :
         internal::mask_bands(call.mask.array, b, head, work.q_len, work.kv_len, work.window)) {
      if (Status s = attend_band(work, rows, b, head, num_heads, band); !s.ok()) return s;
    }
  }
  return {};
}

// Whether [B, H, q, D] can be seen as [B * q, H, D].
bool joins(const ConstTensorView& t) {
  return t.dim(0) == 1 || t.dim(2) == 1 || t.step(0) == t.dim(2) * t.step(2);
}

ConstTensorView joined(const ConstTensorView& t) {
  ConstTensorView all(t.data, t.dtype, {t.dim(0) * t.dim(2), t.dim(1), t.dim(3)});
  all.device = t.device;
  all.stride = {t.dim(2) == 1 ? t.step(0) : t.step(2), t.step(1), t.step(3)};
  return all;
}

// Over pages: all batch rows in one call where the strides and the mask allow it.
Status attend_pages(const Work& work, const KvView& view) {
  const PagedAttentionCall& call = work.call;
  if (call.mask.kind == AttentionMask::Kind::array || !joins(call.queries) || !joins(call.out)) {
    for (int64_t b = 0; b < work.batch; ++b) {
      if (Status s = attend_sequence(work, sequence_of(view, b), b); !s.ok()) return s;
    }
    return {};
  }
  const Segment segment{view};
  std::vector<int32_t> indptr;
  for (int64_t b = 0; b <= work.batch; ++b) {
    indptr.push_back(static_cast<int32_t>(b * work.q_len));
  }
  AttentionCall all;
  all.q = joined(call.queries);
  all.query_indptr = indptr;
  all.segments = {&segment, 1};
  all.params = params_of(work);
  const ConstTensorView out = joined(call.out);
  all.out = TensorView(call.out.data, out.dtype, {out.dim(0), out.dim(1), out.dim(2)});
  all.out.device = out.device;
  all.out.stride = out.stride;
  return attend(work.backend, all);
}

// Over contiguous arrays [B, H_kv, T, D].
Status attend_arrays(const Work& work, const KvArrays& arrays) {
  const auto length = static_cast<int32_t>(arrays.num_rows());
  const std::array<int32_t, 2> indptr = {0, length};
  const std::array<int32_t, 1> kv_len = {length};
  const std::array<int32_t, 1> first_pos = {0};
  for (int64_t b = 0; b < work.batch; ++b) {
    const ConstTensorView k =
        queries_of(arrays.keys, b, 0, arrays.keys.dim(1), 0, arrays.num_rows());
    const ConstTensorView v =
        queries_of(arrays.values, b, 0, arrays.values.dim(1), 0, arrays.num_rows());
    Result<KvView> view = rows_view(k, v, indptr, kv_len, first_pos);
    if (!view.ok()) return view.status();
    if (Status s = attend_sequence(work, *view, b); !s.ok()) return s;
  }
  return {};
}

// The same under a mask that adds numbers.
Status attend_arrays_biased(const Work& work, const KvArrays& arrays) {
  const auto length = static_cast<int32_t>(arrays.num_rows());
  const std::array<int32_t, 2> row_indptr = {0, length};
  const std::array<int32_t, 1> kv_len = {length};
  const std::array<int32_t, 1> first_pos = {0};
  const std::array<int32_t, 2> query_indptr = {0, static_cast<int32_t>(work.q_len)};
  // All batch rows look alike: the first round only checks.
  for (const bool checks : {true, false}) {
    for (int64_t b = 0; b < work.batch; ++b) {
      internal::BiasedCall biased;
      biased.queries = queries_of(work.call.queries, b, 0, work.num_heads, 0, work.q_len);
      biased.out = queries_of(work.call.out, b, 0, work.num_heads, 0, work.q_len);
      biased.keys = queries_of(arrays.keys, b, 0, arrays.keys.dim(1), 0, arrays.num_rows());
      biased.values = queries_of(arrays.values, b, 0, arrays.values.dim(1), 0, arrays.num_rows());
      biased.mask = work.call.mask.array;
      biased.batch_row = b;
      biased.params = params_of(work);
      biased.params.window = work.window;
      if (!checks) {
        internal::attend_biased(biased);
        continue;
      }
      const Result<KvView> view =
          rows_view(biased.keys, biased.values, row_indptr, kv_len, first_pos);
      if (!view.ok()) return view.status();
      const Segment segment{*view};
      AttentionCall call;
      call.q = biased.queries;
      call.query_indptr = query_indptr;
      call.segments = {&segment, 1};
      call.params = params_of(work);
      call.out = biased.out;
      if (Status status = check(call); !status.ok()) return status;
    }
  }
  return {};
}

// Rows that the call is over.
int64_t length_of(const PagedState& state, const PagedAttentionCall& call) {
  return call.kv_len.value_or(state.offset());
}

// num_rows: those that the cache holds, or will.
Status check_shapes(const PagedState& state, const PagedAttentionCall& call, int64_t num_rows) {
  const KvArrayShape& shape = state.rows->shape();
  const int64_t length = length_of(state, call);
  if (length < 0 || length > num_rows) {
    return invalid_argument("kv_len is " + num(length) + "; the cache holds " + num(num_rows) +
                            " rows");
  }
  const ConstTensorView& q = call.queries;
  if (q.rank != 4 || call.out.rank != 4) {
    return invalid_argument("queries and out need 4 dimensions: [B, H, q_len, D]");
  }
  for (int d = 0; d < 3; ++d) {
    if (q.dim(d) != call.out.dim(d)) {
      return invalid_argument("queries and out differ in dimension " + num(d));
    }
  }
  if (q.dim(0) != shape.batch) {
    return invalid_argument("queries have " + num(q.dim(0)) + " batch rows; the cache holds " +
                            num(shape.batch));
  }
  if (q.dim(1) < 1 || q.dim(1) % shape.num_kv_heads != 0) {
    return invalid_argument("queries have " + num(q.dim(1)) +
                            " heads; that is no multiple of the " + num(shape.num_kv_heads) +
                            " KV heads");
  }
  if (q.dim(2) > length) {
    return invalid_argument("q_len " + num(q.dim(2)) + " exceeds the " + num(length) +
                            " cached rows; write the rows of the queries first");
  }
  if (q.dim(3) != shape.head_dim_k || call.out.dim(3) != shape.head_dim_v) {
    return invalid_argument("queries and out have head dims " + num(q.dim(3)) + " and " +
                            num(call.out.dim(3)) + "; the cache holds " + num(shape.head_dim_k) +
                            " and " + num(shape.head_dim_v));
  }
  if (call.sliding_window && *call.sliding_window < 1) {
    return invalid_argument("sliding_window is " + num(*call.sliding_window) +
                            "; it counts tokens, at least 1");
  }
  if (call.mask.kind != AttentionMask::Kind::array) return {};
  return internal::check_mask(call.mask.array, q.dim(0), q.dim(1), q.dim(2), length);
}

std::optional<int64_t> window_of(const PagedState& state, const PagedAttentionCall& call) {
  return state.options.sliding_window ? state.options.sliding_window : call.sliding_window;
}

bool is_partitioned(const PagedState& state, const PagedAttentionCall& call) {
  return state.options.partitioned && length_of(state, call) >= state.options.partition_threshold;
}

// Counts a call that is not served, or not as asked for.
void count_bailout(PagedState& state, const PagedAttentionCall& call, const char* reason) {
  const std::string key = std::string(paged_phase_name(call.phase)) + ":" + reason;
  ++state.counters.paged_attention_bailouts_by_phase_reason[key];
  PagedBailout bailout;
  bailout.phase = call.phase;
  bailout.reason = reason;
  bailout.impl = call.impl_override.value_or(state.options.route);
  bailout.offset = length_of(state, call);
  bailout.q_len = call.queries.rank == 4 ? call.queries.dim(2) : 0;
  bailout.max_q_len = state.options.max_q_len;
  bailout.block_size = state.options.block_size;
  bailout.sliding_window = window_of(state, call);
  bailout.partitioned_enabled = state.options.partitioned;
  bailout.partition_threshold = state.options.partition_threshold;
  state.bailout = bailout;
}

// Why paged attention declines the call, if it does. The shapes are checked.
const char* decline_reason(const PagedState& state, const PagedAttentionCall& call) {
  const std::optional<int64_t> most = state.options.max_q_len;
  if (call.mask.kind == AttentionMask::Kind::array && !internal::only_hides(call.mask.array)) {
    return "unsupported_mask";
  }
  if (most && call.queries.dim(2) > *most && !is_partitioned(state, call)) return "q_len_gt_max";
  return nullptr;
}

void count_partitioned(PagedState& state, PagedPhase phase) {
  PagedStats& counters = state.counters;
  ++counters.partitioned_paged_calls;
  ++counters.partitioned_attention_calls;
  ++counters.partitioned_paged_calls_by_phase[std::string(paged_phase_name(phase))];
  if (phase == PagedPhase::prefill) ++counters.prefill_partitioned_paged_calls;
  if (phase == PagedPhase::decode_verify) ++counters.decode_partitioned_paged_calls;
  counters.paged_attention_large_q_path = "partitioned_paged";
}

void count_low_bit(PagedState& state, PagedRoute route) {
  PagedStats& counters = state.counters;
  if (state.options.turboquant) {
    ++counters.turboquant_attention_calls;
  } else if (state.options.kv_quant && state.options.kv_quant->mode) {
    ++counters.kv_quant_attention_calls;
    if (route == PagedRoute::packed) ++counters.kv_quant_kernel_calls;
  }
}

Work work_of(const PagedState& state, const PagedAttentionCall& call) {
  const std::optional<int64_t> window = window_of(state, call);
  // A window that reaches past every position hides nothing.
  const std::optional<int> small =
      window && *window < INT32_MAX ? std::optional<int>(static_cast<int>(*window)) : std::nullopt;
  return {*state.backend,
          call,
          small,
          call.queries.dim(0),
          call.queries.dim(1),
          call.queries.dim(2),
          length_of(state, call)};
}

// The first num_rows rows of each sequence; `lengths` holds what the view then borrows.
KvView first_rows(const KvView& view, int64_t num_rows, std::vector<int32_t>& lengths) {
  lengths.assign(view.kv_len.size(), static_cast<int32_t>(num_rows));
  KvView first = view;
  first.kv_len = lengths;
  return first;
}

KvArrays first_rows(const KvArrays& arrays, int64_t num_rows) {
  return {rows_of(arrays.keys, 0, num_rows), rows_of(arrays.values, 0, num_rows), arrays.owner};
}

Status run(PagedState& state, const PagedAttentionCall& call, PagedRoute route) {
  const auto start = std::chrono::steady_clock::now();
  const Work work = work_of(state, call);
  Status status;
  if (route == PagedRoute::gather) {
    Result<KvArrays> arrays = state.is_low_bit() ? state.mirrored() : state.gather();
    status = arrays.ok() ? attend_arrays(work, first_rows(*arrays, work.kv_len)) : arrays.status();
  } else {
    status = state.rows->read([&](const KvView& view) {
      if (work.kv_len == state.offset()) return attend_pages(work, view);
      std::vector<int32_t> lengths;
      return attend_pages(work, first_rows(view, work.kv_len, lengths));
    });
  }
  state.counters.attention_time_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (status.ok()) count_low_bit(state, route);
  return status;
}

// The route that serves a call. Where routes round differently a request never leaves its own.
PagedRoute serving_route(const PagedState& state, const PagedAttentionCall& call) {
  const PagedRoute asked = call.impl_override.value_or(state.options.route);
  return state.is_low_bit() ? state.route.value_or(asked) : asked;
}

// The request's first call has been served.
void latch(PagedState& state, PagedRoute route, int64_t offset) {
  state.route = route;
  state.route_offset = offset;
  if (route == PagedRoute::packed) state.mirror.reset();
}

void tell_latched(PagedState& state, PagedRoute asked) {
  const bool low_bit = state.is_low_bit();
  const std::string latched(paged_route_name(*state.route, low_bit));
  const std::string other(paged_route_name(asked, low_bit));
  state.tell("route_latched",
             low_bit ? "this request attends by route " + latched + "; a call asked for " + other +
                           " and was served by " + latched + ", because the two round differently"
                     : "this request attends by route " + latched + "; a call asked for " + other +
                           " and was served by it (the bits are the same)");
}

void count_dense_fallback(PagedStats& counters, PagedPhase phase) {
  ++counters.dense_fallback_calls;
  switch (phase) {
    case PagedPhase::prefill:
      ++counters.prefill_dense_fallback_calls;
      return;
    case PagedPhase::decode_verify:
      ++counters.decode_dense_fallback_calls;
      return;
    case PagedPhase::ar_decode:
      ++counters.ar_dense_fallback_calls;
      return;
    case PagedPhase::postcommit:
      ++counters.postcommit_dense_fallback_calls;
      return;
    case PagedPhase::unknown:
      return;
  }
}

}  // namespace

Result<bool> PagedKVCache::would_serve(const PagedAttentionCall& call) const {
  const PagedState& state = *state_;
  const int64_t length = length_of(state, call);
  if (!state.rows || length == 0 || (call.queries.rank == 4 && call.queries.dim(2) <= 0)) {
    return false;
  }
  if (Status status = check_shapes(state, call, length); !status.ok()) return status;
  return decline_reason(state, call) == nullptr;
}

Result<bool> PagedKVCache::paged_attention(const PagedAttentionCall& call) {
  PagedState& state = *state_;
  if (empty()) {
    count_bailout(state, call, "empty_cache");
    return false;
  }
  if (call.queries.rank == 4 && call.queries.dim(2) <= 0) {
    count_bailout(state, call, "q_len_invalid");
    return false;
  }
  if (Status status = check_shapes(state, call, state.offset()); !status.ok()) return status;
  if (const char* reason = decline_reason(state, call)) {
    count_bailout(state, call, reason);
    return false;
  }
  const PagedRoute route = serving_route(state, call);
  if (Status status = run(state, call, route); !status.ok()) return status;
  const PagedRoute asked = call.impl_override.value_or(state.options.route);
  if (!state.route) {
    latch(state, route, length_of(state, call));
  } else if (*state.route != asked) {
    count_bailout(state, call, "route_latched");
    tell_latched(state, asked);
  }
  ++state.counters.paged_attention_calls;
  if (is_partitioned(state, call)) count_partitioned(state, call.phase);
  return true;
}

namespace {

// Each serves what paged attention declined and says how.

Result<std::string> serve_long(PagedState& state, const PagedAttentionCall& call) {
  const std::string what =
      "q_len " + num(call.queries.dim(2)) + " exceeds max_q_len " + num(*state.options.max_q_len);
  if (state.options.forbid_dense_fallback) {
    return unsupported(what +
                       " and dense fallback is forbidden; raise max_q_len or set partitioned");
  }
  if (!state.is_low_bit()) {
    if (Status status = run(state, call, PagedRoute::gather); !status.ok()) return status;
    return what + ": attention runs over gathered rows instead of pages";
  }
  // Queries do not depend on each other, so that more of them keep the request's arithmetic.
  const PagedRoute route = serving_route(state, call);
  if (Status status = run(state, call, route); !status.ok()) return status;
  if (!state.route) latch(state, route, length_of(state, call));
  return what + ": attention runs by the request's route, " +
         std::string(paged_route_name(route, true)) + ", all the same";
}

Result<std::string> serve_biased(PagedState& state, const PagedAttentionCall& call) {
  const std::string what =
      "the mask adds numbers other than 0 and minus infinity, which no kernel does";
  if (state.options.forbid_dense_fallback) {
    return unsupported(what + ", and dense fallback is forbidden");
  }
  const auto start = std::chrono::steady_clock::now();
  const Result<KvArrays> arrays = state.gather();
  if (!arrays.ok()) return arrays.status();
  const Work work = work_of(state, call);
  const Status status = attend_arrays_biased(work, first_rows(*arrays, work.kv_len));
  state.counters.attention_time_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!status.ok()) return status;
  return what + ": attention runs in plain loops over gathered rows";
}

}  // namespace

Status PagedKVCache::attend(const PagedAttentionCall& call) {
  Result<bool> served = paged_attention(call);
  if (!served.ok()) return served.status();
  if (*served) return {};
  PagedState& state = *state_;
  const std::string reason = state.bailout->reason;
  if (reason != "q_len_gt_max" && reason != "unsupported_mask") {
    return unsupported("paged attention declined: " + reason + " (phase " +
                       std::string(paged_phase_name(call.phase)) + ")");
  }
  const Result<std::string> what =
      reason == "q_len_gt_max" ? serve_long(state, call) : serve_biased(state, call);
  if (!what.ok()) return what.status();
  count_dense_fallback(state.counters, call.phase);
  state.tell(reason, *what);
  return {};
}

}  // namespace kvik
