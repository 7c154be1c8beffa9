// One attention call: what it reads, what it computes, and the check that every call passes first.
//
// For query row j of sequence b with q_len queries, the newest key of the sequence sits at position
// n - 1, n = the largest first_pos + kv_len over the segments, and the query at p = n - q_len + j.
// It sees the keys t that a segment serves with t <= p (if causal) and t > p - window
// (window_of(call), if set; window 0 sees nothing). Over the visible keys
//   s_t = scale * (q . k_t),  then s_t = softcap * tanh(s_t / softcap) if softcap > 0,
//   out = sum_t exp(s_t - lse) v_t,  lse = log(sum_t exp(s_t) + exp(sink)).
// Query head h reads KV head h / (num_heads / num_kv_heads). A row that sees nothing gives zeros,
// and -infinity (or the sink) as log-sum-exp. Sources: Vaswani et al. 2017, eq. 1; the softmax is
// taken in pieces as in Milakov & Gimelshein 2018.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/core/tensor_view.h"
#include "kvik/format/kv_view.h"

namespace kvik {

struct AttentionParams {
  std::optional<float> scale = std::nullopt;  // none: 1 / sqrt(head_dim_k), see scale_of()
  bool causal = true;
  // Tokens, the query's own among them. Views of a cache with a window carry it (KvView::window),
  // and it counts without being said here; what is said here is then no wider.
  std::optional<int> window = std::nullopt;
  float softcap = 0.0f;               // 0: none
  std::span<const float> sinks = {};  // one logit per query head, or empty
};

// Rows of one storage that serve the positions [begin, end) of every sequence; with `newest` = n
// only keys t > p - n of a query at p. Segments of a call are in order of position and do not
// overlap, except that a segment with `newest` takes the keys it serves from the segments before
// it: exact first rows, packed body, exact recent rows.
struct Segment {
  KvView view;
  int begin = 0;
  int end = INT32_MAX;
  std::optional<int> newest = std::nullopt;
};

struct AttentionCall {
  ConstTensorView q;                      // [num_queries, num_heads, head_dim_k]
  std::span<const int32_t> query_indptr;  // num_seqs + 1; queries of sequence b are [b], [b + 1)
  std::span<const Segment> segments;      // at least one
  AttentionParams params;
  TensorView out;                                     // [num_queries, num_heads, head_dim_v]
  std::optional<TensorView> lse = std::nullopt;       // f32 [num_queries, num_heads], sink included
  std::optional<TensorView> lse_keys = std::nullopt;  // the same without the sink

  int num_seqs() const { return static_cast<int>(query_indptr.size()) - 1; }
  int num_heads() const { return static_cast<int>(q.shape[1]); }
  int q_len(int seq) const {
    const auto b = static_cast<size_t>(seq);
    return query_indptr[b + 1] - query_indptr[b];
  }
};

// Ok, or invalid_argument naming the argument that is wrong: ranks, shapes, strides, dtypes, head
// counts that do not divide, head dims that a format does not take, block tables too short for
// kv_len, page ids outside the pool, null pointers, products beyond 64 bits, an output that shares
// memory with an input or another output, windows that contradict each other. For views of a cache
// also: a step that has ended, rows that it has not written, other block tables than its own, and
// queries whose window reaches below the rows that are held. unsupported for a device that is not
// the CPU, and packed rows outside tiles.
KVIK_API Status check(const AttentionCall& call);

// A view of plain row-major arrays k [num_rows, num_kv_heads, head_dim_k] and v [.., ..,
// head_dim_v]: sequence b has kv_len[b] rows from row row_indptr[b] on, at positions from
// first_pos[b]. Borrows all. Errors: invalid_argument for wrong ranks, dtypes, strides or shapes
// that differ between k and v.
KVIK_API Result<KvView> rows_view(const ConstTensorView& k, const ConstTensorView& v,
                                  std::span<const int32_t> row_indptr,
                                  std::span<const int32_t> kv_len,
                                  std::span<const int32_t> first_pos);

// Half-open range of positions.
struct PositionRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
};

// The factor of the scores: that of the params, or 1 / sqrt(head_dim_k) (1 for head_dim_k 0).
KVIK_API float scale_of(const AttentionParams& params, int64_t head_dim_k);

// The window of a call: the narrowest of its views and its params.
KVIK_API std::optional<int> window_of(const AttentionCall& call);

// n of the head comment: one past the newest position of sequence seq. Requires: a checked call.
KVIK_API int64_t sequence_end(const AttentionCall& call, int seq);

// The keys of segment `segment_idx` that a query at position p of sequence seq reads.
// Requires: a checked call.
KVIK_API PositionRange visible_range(const AttentionCall& call, int segment_idx, int seq,
                                     int64_t p);

}  // namespace kvik
