#include "fuzz/attend_call.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kvik/core/checked_math.h"

namespace kvik::test {
namespace {

// Wide enough for any sum of products of two 64-bit strides and counts that the door lets through.
__extension__ using Wide = __int128;

// Bytes from the first to one past the last that the view names; 0 if it has no elements.
Wide tensor_reach(const ConstTensorView& t) {
  Wide last = 0;
  for (int d = 0; d < t.rank; ++d) {
    if (t.dim(d) == 0) return 0;
    last += Wide{t.dim(d) - 1} * t.step(d);
  }
  return (last + 1) * dtype_bytes(t.dtype);
}

bool tensor_fits(const ConstTensorView& t, const OwnedBytes& memory) {
  const Wide reach = tensor_reach(t);
  return reach == 0 || t.data - memory.data() + reach <= memory.size();
}

int64_t k_unit(const KvView& view) {
  return view.layout == KvLayout::tiles
             ? view.block_size / kTileTokens * tile_bytes_k(view.format.k, view.head_dim_k)
             : view.head_dim_k * kv_code_bytes(view.format.k);
}
int64_t v_unit(const KvView& view) {
  return view.layout == KvLayout::tiles
             ? view.block_size / kTileTokens * tile_bytes_v(view.format.v, view.head_dim_v)
             : view.head_dim_v * kv_code_bytes(view.format.v);
}

// One past the highest page (rows: row) that some sequence reads.
int64_t used_pages(const KvView& view) {
  int64_t end = 0;
  for (size_t b = 0; b < view.kv_len.size(); ++b) {
    const int64_t first = view.page_indptr[b];
    if (view.layout == KvLayout::rows) {
      if (view.kv_len[b] > 0) end = std::max<int64_t>(end, first + view.kv_len[b]);
      continue;
    }
    for (int64_t i = 0; i < ceil_div(view.kv_len[b], view.block_size); ++i) {
      end = std::max<int64_t>(end, int64_t{view.page_ids[static_cast<size_t>(first + i)]} + 1);
    }
  }
  return end;
}

bool storage_fits(const std::byte* data, std::array<int64_t, 2> stride, int64_t unit,
                  const KvView& view, const OwnedBytes& memory) {
  const int64_t pages = used_pages(view);
  if (pages == 0 || unit == 0) return true;
  const Wide reach = Wide{pages - 1} * stride[0] + Wide{view.num_kv_heads - 1} * stride[1] + unit;
  return data - memory.data() + reach <= memory.size();
}

DType pick_dtype(ByteReader& bytes) {
  constexpr std::array kAll = {DType::f32, DType::f16, DType::bf16};
  return kAll[static_cast<size_t>(bytes.below(3))];
}

int pick_head_dim(ByteReader& bytes) {
  const int dim = bytes.below(44);
  return dim < 40 ? dim : std::array{64, 80, 128, 576}[static_cast<size_t>(dim - 40)];
}

// A preparation that depends on the frame, so that a frame mixed up shows.
float turn(const void*, int kv_head, int64_t frame_begin, const float* query, float* prepared,
           int head_dim) {
  const float factor = frame_begin / 128 % 2 == 0 ? 1.0f : -0.5f;
  for (int d = 0; d < head_dim; ++d) prepared[d] = factor * query[d];
  return 0.25f * static_cast<float>(kv_head);
}
float turn_of_state(const void* state, int kv_head, int64_t frame_begin, const float* query,
                    float* prepared) {
  return turn(nullptr, kv_head, frame_begin, query, prepared, *static_cast<const int*>(state));
}

TensorView strided(OwnedBytes& memory, DType dtype, std::array<int64_t, 3> shape, int64_t gap) {
  TensorView view(nullptr, dtype, {shape[0], shape[1], shape[2]});
  view.stride = {shape[1] * (shape[2] + gap) + gap, shape[2] + gap, 1, 0};
  memory = OwnedBytes(static_cast<int64_t>(tensor_reach(view)));
  view.data = memory.data();
  return view;
}

}  // namespace

FuzzedCall::FuzzedCall(ByteReader& bytes) {
  num_seqs_ = bytes.below(4);
  num_kv_heads_ = 1 + bytes.below(3);
  num_heads_ = num_kv_heads_ * (1 + bytes.below(4));
  head_dim_k_ = pick_head_dim(bytes);
  head_dim_v_ = pick_head_dim(bytes);
  build_queries(bytes);
  build_segments(bytes);
  build_params(bytes);
  list_numbers();
  for (int i = bytes.below(4); i > 0; --i) make_odd(bytes);
}

void FuzzedCall::build_queries(ByteReader& bytes) {
  query_indptr_.assign(static_cast<size_t>(num_seqs_) + 1, 0);
  for (size_t b = 0; b < static_cast<size_t>(num_seqs_); ++b) {
    query_indptr_[b + 1] = query_indptr_[b] + bytes.below(7);
  }
  call_.query_indptr = query_indptr_;
  const int64_t num_queries = query_indptr_.back();
  const bool random_bits = bytes.below(4) == 3;
  is_tame_ &= !random_bits;
  call_.q = strided(q_, pick_dtype(bytes), {num_queries, num_heads_, head_dim_k_}, bytes.below(3));
  q_.fill(1, call_.q.dtype, random_bits);
  call_.out =
      strided(out_, pick_dtype(bytes), {num_queries, num_heads_, head_dim_v_}, bytes.below(3));
  const int lse = bytes.below(4);
  for (auto [view, memory, wanted] : {std::tuple(&call_.lse, &lse_, (lse & 1) != 0),
                                      std::tuple(&call_.lse_keys, &lse_keys_, (lse & 2) != 0)}) {
    if (!wanted) continue;
    *view = TensorView(nullptr, DType::f32, {num_queries, num_heads_});
    (*view)->stride[0] += bytes.below(2);
    *memory = OwnedBytes(static_cast<int64_t>(tensor_reach(**view)));
    (*view)->data = memory->data();
  }
}

void FuzzedCall::build_segments(ByteReader& bytes) {
  int begin = 0;
  const int count = 1 + bytes.below(3);
  for (int i = 0; i < count; ++i) {
    Storage& storage = storage_.emplace_back();
    Segment segment;
    KvView& view = segment.view;
    view.format = {kv_code_of(pick_dtype(bytes)), kv_code_of(pick_dtype(bytes))};
    view.layout = bytes.flag() ? KvLayout::rows : KvLayout::tiles;
    view.num_kv_heads = num_kv_heads_;
    view.head_dim_k = head_dim_k_;
    view.head_dim_v = head_dim_v_;
    view.block_size = kTileTokens * (1 + bytes.below(3));
    build_sequences(bytes, storage, view);
    build_memory(bytes, storage, view);
    if (bytes.below(4) == 3) {
      storage.transform = {std::array{0, 128, 256, 512}[static_cast<size_t>(bytes.below(4))],
                           turn_of_state, &head_dim_k_};
      view.key_transform = &storage.transform;
    }
    const int kind = i == 0 ? 0 : bytes.below(3);
    if (kind == 2) segment.newest = bytes.below(70);
    segment.begin = kind == 2 ? 0 : begin + bytes.below(20);
    if (i + 1 < count && kind != 2) segment.end = segment.begin + bytes.below(64);
    if (kind != 2) begin = segment.end;
    if (begin > INT32_MAX - 20) begin = 0;  // the next one overlaps, which the door must see
    segments_.push_back(segment);
  }
  call_.segments = segments_;
}

void FuzzedCall::build_sequences(ByteReader& bytes, Storage& storage, KvView& view) {
  const bool tiles = view.layout == KvLayout::tiles;
  const auto num_seqs = static_cast<size_t>(num_seqs_);
  storage.page_indptr.assign(num_seqs + 1, 0);
  storage.page_indptr[0] = bytes.below(2);
  storage.kv_len.resize(num_seqs);
  storage.first_pos.resize(num_seqs);
  for (size_t b = 0; b < num_seqs; ++b) {
    const int length = bytes.byte();
    storage.kv_len[b] = length < 240 ? length % 80 : 600 * (length - 240) / 4;
    storage.first_pos[b] = (tiles ? kTileTokens : 5) * bytes.below(4);
    const int64_t units = tiles ? ceil_div(storage.kv_len[b], view.block_size) : storage.kv_len[b];
    storage.page_indptr[b + 1] =
        storage.page_indptr[b] + static_cast<int32_t>(units) + bytes.below(2);
  }
  view.num_pages = tiles ? 1 + bytes.below(30) : storage.page_indptr.back();
  if (tiles) {
    storage.page_ids.resize(static_cast<size_t>(storage.page_indptr.back()));
    const uint64_t seed = bytes.byte();
    for (size_t i = 0; i < storage.page_ids.size(); ++i) {
      storage.page_ids[i] = static_cast<int32_t>(below(seed, i, view.num_pages));
    }
  }
  view.page_indptr = storage.page_indptr;
  view.page_ids = storage.page_ids;
  view.first_pos = storage.first_pos;
  view.kv_len = storage.kv_len;
}

void FuzzedCall::build_memory(ByteReader& bytes, Storage& storage, KvView& view) {
  const bool random_bits = bytes.below(4) == 3;
  is_tame_ &= !random_bits;
  const int64_t gap_k = view.layout == KvLayout::tiles ? kLineBytes : kv_code_bytes(view.format.k);
  const int64_t gap_v = view.layout == KvLayout::tiles ? kLineBytes : kv_code_bytes(view.format.v);
  view.k_stride[1] = k_unit(view) + gap_k * bytes.below(2);
  view.v_stride[1] = v_unit(view) + gap_v * bytes.below(2);
  view.k_stride[0] = view.k_stride[1] * num_kv_heads_ + gap_k * bytes.below(2);
  view.v_stride[0] = view.v_stride[1] * num_kv_heads_ + gap_v * bytes.below(2);
  if (bytes.below(8) == 7) view.k_stride[0] = 0;  // all pages (or rows) are one
  const auto size = [&](std::array<int64_t, 2> stride, int64_t unit) {
    return view.num_pages == 0 || unit == 0
               ? int64_t{0}
               : (view.num_pages - 1) * stride[0] + (num_kv_heads_ - 1) * stride[1] + unit;
  };
  storage.k = OwnedBytes(size(view.k_stride, k_unit(view)));
  storage.v = OwnedBytes(size(view.v_stride, v_unit(view)));
  const auto dtype = [](KvCode code) {
    return code == KvCode::f32 ? DType::f32 : code == KvCode::f16 ? DType::f16 : DType::bf16;
  };
  storage.k.fill(2, dtype(view.format.k), random_bits);
  storage.v.fill(3, dtype(view.format.v), random_bits);
  view.k = storage.k.data();
  view.v = storage.v.data();
}

void FuzzedCall::build_params(ByteReader& bytes) {
  AttentionParams& params = call_.params;
  const auto any_float = [&] { return std::bit_cast<float>(static_cast<uint32_t>(bytes.word(4))); };
  params.scale = bytes.below(4) == 3 ? any_float() : static_cast<float>(bytes.below(9)) / 8.0f;
  params.causal = bytes.below(4) != 3;
  if (bytes.below(3) == 2) params.window = bytes.byte();
  if (bytes.below(3) == 2) params.softcap = bytes.flag() ? any_float() : 20.0f;
  if (bytes.below(3) == 2) {
    sinks_.resize(static_cast<size_t>(num_heads_));
    for (float& sink : sinks_) sink = static_cast<float>(bytes.below(9)) - 4.0f;
    if (bytes.flag()) sinks_[0] = any_float();
    params.sinks = sinks_;
    for (const float sink : sinks_) is_tame_ &= std::fabs(sink) < 1e3f;
  }
  if (bytes.below(8) == 7) params.scale.reset();
  if (bytes.below(8) == 7) {
    for (Segment& segment : segments_) segment.view.window = params.window;
    if (bytes.flag()) params.window.reset();
  }
  is_tame_ &= std::fabs(params.scale.value_or(1.0f)) <= 1.0f &&
              (params.softcap == 0.0f || params.softcap > 1e-3f);
}

void FuzzedCall::list_numbers() {
  const auto add64 = [&](auto& array) {
    for (int64_t& x : array) numbers64_.push_back(&x);
  };
  const auto add32 = [&](auto& array) {
    for (int32_t& x : array) numbers32_.push_back(&x);
  };
  const auto add_tensor = [&](auto& t) {
    add64(t.shape);
    add64(t.stride);
    numbers32_.push_back(&t.rank);
  };
  add_tensor(call_.q);
  add_tensor(call_.out);
  if (call_.lse) add_tensor(*call_.lse);
  if (call_.lse_keys) add_tensor(*call_.lse_keys);
  if (call_.params.window) numbers32_.push_back(&*call_.params.window);
  add32(query_indptr_);
  auto storage = storage_.begin();
  for (Segment& segment : segments_) {
    KvView& view = segment.view;
    add64(view.k_stride);
    add64(view.v_stride);
    for (int32_t* x : {&view.num_kv_heads, &view.head_dim_k, &view.head_dim_v, &view.block_size,
                       &view.num_pages, &segment.begin, &segment.end, &storage->transform.frame}) {
      numbers32_.push_back(x);
    }
    if (segment.newest) numbers32_.push_back(&*segment.newest);
    add32(storage->page_indptr);
    add32(storage->page_ids);
    add32(storage->first_pos);
    add32(storage->kv_len);
    ++storage;
  }
}

void FuzzedCall::make_odd(ByteReader& bytes) {
  const int kind = bytes.below(16);
  if (kind < 6) {
    int64_t& x = *numbers64_[static_cast<size_t>(bytes.word(2)) % numbers64_.size()];
    x = bytes.odd_value(x);
    return;
  }
  if (kind < 12) {
    int32_t& x = *numbers32_[static_cast<size_t>(bytes.word(2)) % numbers32_.size()];
    x = static_cast<int32_t>(bytes.odd_value(x));
    return;
  }
  KvView& view = segments_[static_cast<size_t>(bytes.byte()) % segments_.size()].view;
  if (kind == 12) {  // an array that is too short
    const auto shorter = [&](auto& span) {
      span = span.first(static_cast<size_t>(bytes.byte()) % (span.size() + 1));
    };
    switch (bytes.below(7)) {
      case 0:
        return shorter(call_.query_indptr);
      case 1:
        return shorter(call_.segments);
      case 2:
        return shorter(call_.params.sinks);
      case 3:
        return shorter(view.page_indptr);
      case 4:
        return shorter(view.page_ids);
      case 5:
        return shorter(view.first_pos);
      default:
        return shorter(view.kv_len);
    }
  }
  if (kind == 13) {  // a pointer that is null or begins later
    const int step = bytes.below(4);
    const auto move = [&](auto*& p) { p = step == 0 ? nullptr : p + (1 << 2 * (step - 1)); };
    switch (bytes.below(5)) {
      case 0:
        return move(call_.q.data);
      case 1:
        return move(call_.out.data);
      case 2:
        return call_.lse ? move(call_.lse->data) : void();
      case 3:
        return move(view.k);
      default:
        return move(view.v);
    }
  }
  if (kind == 14) {
    view.format = {kv_code_of(pick_dtype(bytes)), kv_code_of(pick_dtype(bytes))};
    call_.out.dtype = pick_dtype(bytes);
    call_.q.dtype = pick_dtype(bytes);
    is_tame_ = false;
    return;
  }
  (bytes.flag() ? call_.q.device : call_.out.device) = Device::cuda;
}

bool FuzzedCall::fits() const {
  if (!tensor_fits(call_.q, q_) || !tensor_fits(call_.out, out_)) return false;
  if (call_.lse && !tensor_fits(*call_.lse, lse_)) return false;
  if (call_.lse_keys && !tensor_fits(*call_.lse_keys, lse_keys_)) return false;
  auto storage = storage_.begin();
  for (const Segment& segment : call_.segments) {
    const KvView& view = segment.view;
    if (!storage_fits(view.k, view.k_stride, k_unit(view), view, storage->k)) return false;
    if (!storage_fits(view.v, view.v_stride, v_unit(view), view, storage->v)) return false;
    if (view.key_transform != nullptr && view.head_dim_k != head_dim_k_) return false;
    ++storage;
  }
  return true;
}

double FuzzedCall::work() const {
  double keys = 64;
  for (const Segment& segment : call_.segments) {
    for (const int32_t length : segment.view.kv_len) keys += length;
  }
  return static_cast<double>(call_.q.dim(0)) * static_cast<double>(call_.q.dim(1)) * keys *
         static_cast<double>(call_.q.dim(2) + call_.out.dim(2) + 8);
}

}  // namespace kvik::test
