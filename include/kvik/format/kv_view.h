// What a kernel sees of a cache: pointers, strides and block tables, for a batch of sequences.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "kvik/core/export.h"
#include "kvik/format/kv_format.h"
#include "kvik/format/step_rows.h"
#include "kvik/format/tile.h"

namespace kvik {

// How the queries that read a segment are prepared before their dot products; the inverse of what
// the format did to the keys when they were stored. Plain formats need none. A frame is a run of
// positions [i * frame, (i + 1) * frame) that shares one preparation (formats with calibrated keys:
// 128, 256 or 512 tokens); frame 0 prepares once for all positions. score = scale * (prepared . key
// + added).
struct KeyTransform {
  // For a query head that reads KV head kv_head: writes head_dim_k floats to `prepared` and returns
  // the number to add. Pure; called from any thread.
  using Prepare = float (*)(const void* state, int kv_head, int64_t frame_begin, const float* query,
                            float* prepared);
  // The row that the format encodes for a key at `position`: both of head_dim_k floats, which may
  // be the same. Pure; called from any thread. Null: the key itself.
  using Store = void (*)(const void* state, int kv_head, int64_t position, const float* key,
                         float* row);
  int frame = 0;  // tokens: 0, 128, 256 or 512
  Prepare prepare = nullptr;
  const void* state = nullptr;  // borrowed
  Store store = nullptr;
};

// The transform of keys that a rotated format stores without frames: signs and Hadamard, frame 0.
// Lives for ever. Requires: head_dim a multiple of 16 from 16 to kMaxHeadDim.
KVIK_API const KeyTransform* rotated_keys(int head_dim);

// tiles: pages of 16-token tiles (tile.h). rows: plain rows of f32, f16 or bf16 in token order, as
// users' arrays and row-major caches hold them; kernels pack them tile by tile. Packed formats live
// in tiles only.
enum class KvLayout : uint8_t { tiles, rows };

// Rows of one layer for a batch of sequences. Byte is std::byte or const std::byte. Borrows
// everything.
//
// Row i of sequence b sits at position first_pos[b] + i, for i in [0, kv_len[b]).
//   tiles: in page page_ids[page_indptr[b] + i / block_size], tile i % block_size / 16, slot i
//   % 16.
//          Address of that tile's K of head h: k + page * k_stride[0] + h * k_stride[1] + tile *
//          tile bytes. k, v and the strides are multiples of tile_alignment.
//   rows:  at k + (page_indptr[b] + i) * k_stride[0] + h * k_stride[1]; page_ids and block_size
//   unused.
template <class Byte>
struct BasicKvView {
  Byte* k = nullptr;
  Byte* v = nullptr;
  KvFormat format;
  KvLayout layout = KvLayout::tiles;
  int num_kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  int block_size = kTileTokens;  // tokens, a multiple of 16
  int num_pages = 0;             // page ids are below it (rows: the number of rows behind k and v)
  std::array<int64_t, 2> k_stride{};  // bytes per page (rows: per token), per head
  std::array<int64_t, 2> v_stride{};
  std::span<const int32_t> page_indptr;  // num_seqs + 1, not decreasing
  std::span<const int32_t> page_ids;
  std::span<const int32_t> first_pos;           // num_seqs, multiples of 16 in the tile layout
  std::span<const int32_t> kv_len;              // num_seqs
  const KeyTransform* key_transform = nullptr;  // needed where is_rotated(format.k)
  // The window of the layer, in tokens: a query at p sees no key below p - window + 1, and rows
  // that no query will see may be gone. An attention call takes it from here.
  std::optional<int> window = std::nullopt;
  StepRef step = {};  // set in the views that a cache hands out

  int num_seqs() const { return static_cast<int>(kv_len.size()); }

  operator BasicKvView<const std::byte>() const  // NOLINT: widening is implicit, as for T*
      requires(!std::is_const_v<Byte>) {
    return {k,          v,          format,    layout,        num_kv_heads, head_dim_k,
            head_dim_v, block_size, num_pages, k_stride,      v_stride,     page_indptr,
            page_ids,   first_pos,  kv_len,    key_transform, window,       step};
  }
};

using KvView = BasicKvView<const std::byte>;
using MutableKvView = BasicKvView<std::byte>;

// Address of tile `tile_in_page` of head `head` in page `page`.
// Requires: layout tiles, indices in range. All products are 64-bit.
template <class Byte>
Byte* k_tile(const BasicKvView<Byte>& view, int64_t page, int64_t tile_in_page, int head) {
  return view.k + page * view.k_stride[0] + head * view.k_stride[1] +
         tile_in_page * tile_bytes_k(view.format.k, view.head_dim_k);
}
template <class Byte>
Byte* v_tile(const BasicKvView<Byte>& view, int64_t page, int64_t tile_in_page, int head) {
  return view.v + page * view.v_stride[0] + head * view.v_stride[1] +
         tile_in_page * tile_bytes_v(view.format.v, view.head_dim_v);
}

}  // namespace kvik
