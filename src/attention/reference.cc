#include "kvik/attention/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvik {
namespace {

float element(const ConstTensorView& t, int64_t i, int64_t j, int64_t d) {
  return load_float(t.dtype, t.at(i, j) + d * t.stride[2] * dtype_bytes(t.dtype));
}

// K and V of one position, as floats. V and, without frames, K are rotated back where the format
// rotates, so that nothing below knows of rotations.
struct Row {
  std::vector<float> k, v;
};

// Whether queries must be prepared for the rows as they are stored; the format's own rotation is
// taken out of the keys instead.
bool prepares_queries(const KvView& view) {
  return view.key_transform != nullptr &&
         !(is_rotated(view.format.k) && view.key_transform == rotated_keys(view.head_dim_k));
}

Row read_row(const KvView& view, int seq, int head, int64_t position) {
  const auto b = static_cast<size_t>(seq);
  const int64_t i = position - view.first_pos[b];
  Row row{std::vector<float>(static_cast<size_t>(view.head_dim_k)),
          std::vector<float>(static_cast<size_t>(view.head_dim_v))};
  if (view.layout == KvLayout::rows) {
    ConstTensorView k(view.k, dtype_of(view.format.k), {1, 1, view.head_dim_k});
    ConstTensorView v(view.v, dtype_of(view.format.v), {1, 1, view.head_dim_v});
    k.data += (view.page_indptr[b] + i) * view.k_stride[0] + head * view.k_stride[1];
    v.data += (view.page_indptr[b] + i) * view.v_stride[0] + head * view.v_stride[1];
    for (int d = 0; d < view.head_dim_k; ++d) row.k[static_cast<size_t>(d)] = element(k, 0, 0, d);
    for (int d = 0; d < view.head_dim_v; ++d) row.v[static_cast<size_t>(d)] = element(v, 0, 0, d);
    return row;
  }
  const int64_t page =
      view.page_ids[static_cast<size_t>(view.page_indptr[b] + i / view.block_size)];
  const int64_t tile = i % view.block_size / kTileTokens;
  const int slot = static_cast<int>(i % kTileTokens);
  (prepares_queries(view) ? decode_stored_k_row : decode_k_row)(
      view.format.k, k_tile(view, page, tile, head), slot, row.k.data(), view.head_dim_k);
  decode_v_row(view.format.v, v_tile(view, page, tile, head), slot, row.v.data(), view.head_dim_v);
  return row;
}

// q . k of one key, the segment's preparation of the query included.
double dot(const KvView& view, const std::vector<float>& query, int kv_head, int64_t position,
           const std::vector<float>& key) {
  const size_t head_dim = query.size();
  std::vector<float> prepared = query;
  double sum = 0;
  if (prepares_queries(view)) {
    const KeyTransform* const transform = view.key_transform;
    const int64_t begin = transform->frame > 0 ? position / transform->frame * transform->frame : 0;
    sum = transform->prepare(transform->state, kv_head, begin, query.data(), prepared.data());
  }
  for (size_t d = 0; d < head_dim; ++d) sum += static_cast<double>(prepared[d]) * key[d];
  return sum;
}

struct Scored {
  double score;
  std::vector<float> v;
};

std::vector<Scored> scored_keys(const AttentionCall& call, int seq, int64_t p, int head,
                                const std::vector<float>& query) {
  const AttentionParams& params = call.params;
  std::vector<Scored> keys;
  for (int s = 0; s < static_cast<int>(call.segments.size()); ++s) {
    const KvView& view = call.segments[static_cast<size_t>(s)].view;
    const int kv_head = head / (call.num_heads() / view.num_kv_heads);
    const PositionRange range = visible_range(call, s, seq, p);
    for (int64_t t = range.begin; t < range.end; ++t) {
      Row row = read_row(view, seq, kv_head, t);
      double score = double{scale_of(params, call.q.dim(2))} * dot(view, query, kv_head, t, row.k);
      if (params.softcap > 0) score = params.softcap * std::tanh(score / params.softcap);
      keys.push_back({score, std::move(row.v)});
    }
  }
  return keys;
}

// log(sum exp(x)) and the output row of the softmax over keys and sink.
void softmax_row(const std::vector<Scored>& keys, std::optional<double> sink, double* out,
                 int head_dim_v, double* lse, double* lse_keys) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  double top = sink.value_or(kMinusInfinity);
  for (const Scored& key : keys) top = std::max(top, key.score);
  std::fill(out, out + head_dim_v, 0.0);
  *lse = *lse_keys = kMinusInfinity;
  if (top == kMinusInfinity) return;
  double sum_keys = 0;
  for (const Scored& key : keys) {
    const double weight = std::exp(key.score - top);
    sum_keys += weight;
    for (int d = 0; d < head_dim_v; ++d) out[d] += weight * key.v[static_cast<size_t>(d)];
  }
  const double sum = sum_keys + (sink ? std::exp(*sink - top) : 0.0);
  for (int d = 0; d < head_dim_v; ++d) out[d] /= sum;
  *lse = top + std::log(sum);
  *lse_keys = top + std::log(sum_keys);
}

}  // namespace

Result<ReferenceResult> reference_attention(const AttentionCall& call) {
  if (Status status = check(call); !status.ok()) return status;
  const int num_heads = call.num_heads();
  const auto rows = static_cast<size_t>(call.q.shape[0] * num_heads);
  const int head_dim_v = call.segments[0].view.head_dim_v;
  ReferenceResult result{std::vector<double>(rows * static_cast<size_t>(head_dim_v)),
                         std::vector<double>(rows), std::vector<double>(rows)};
  std::vector<float> query(static_cast<size_t>(call.q.shape[2]));
  for (int seq = 0; seq < call.num_seqs(); ++seq) {
    const int q_len = call.q_len(seq);
    const int64_t end = sequence_end(call, seq);
    for (int j = 0; j < q_len; ++j) {
      const int64_t i = call.query_indptr[static_cast<size_t>(seq)] + j;
      for (int head = 0; head < num_heads; ++head) {
        for (size_t d = 0; d < query.size(); ++d) {
          query[d] = element(call.q, i, head, static_cast<int64_t>(d));
        }
        std::optional<double> sink;
        if (!call.params.sinks.empty()) sink = call.params.sinks[static_cast<size_t>(head)];
        const auto row = static_cast<size_t>(i * num_heads + head);
        softmax_row(scored_keys(call, seq, end - q_len + j, head, query), sink,
                    result.out.data() + row * static_cast<size_t>(head_dim_v), head_dim_v,
                    &result.lse[row], &result.lse_keys[row]);
      }
    }
  }
  return result;
}

}  // namespace kvik
