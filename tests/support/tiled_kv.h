// Keys and values of a batch of sequences, given as floats, stored in pages for a kernel to read.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kvik/core/checked_math.h"
#include "kvik/format/kv_view.h"
#include "support/random.h"

namespace kvik::test {

struct KvShape {
  int num_kv_heads = 1;
  int head_dim_k = 64;
  int head_dim_v = 64;
};

// Token-major floats [kv_len][num_kv_heads][head_dim] of one sequence.
struct SequenceRows {
  int kv_len = 0;
  std::vector<float> k, v;
};

enum class Poison : uint8_t { none, nan, large };

struct TiledOptions {
  KvFormat format;
  int block_size = 16;
  bool shuffled = false;        // pages in random order, with unused pages between them
  Poison poison = Poison::nan;  // what every byte without a valid token holds
  int first_pos = 0;
};

class TiledKv {
 public:
  TiledKv(const KvShape& shape, const std::vector<SequenceRows>& sequences,
          const TiledOptions& options)
      : shape_(shape), options_(options) {
    page_indptr_.push_back(0);
    for (const SequenceRows& rows : sequences) {
      page_indptr_.push_back(page_indptr_.back() +
                             static_cast<int>(ceil_div(rows.kv_len, options.block_size)));
      kv_len_.push_back(rows.kv_len);
      first_pos_.push_back(options.first_pos);
    }
    assign_pages();
    allocate();
    for (size_t b = 0; b < sequences.size(); ++b) store(static_cast<int>(b), sequences[b]);
  }

  MutableKvView view() {
    MutableKvView view;
    view.k = k_.get();
    view.v = v_.get();
    view.format = options_.format;
    view.num_kv_heads = shape_.num_kv_heads;
    view.head_dim_k = shape_.head_dim_k;
    view.head_dim_v = shape_.head_dim_v;
    view.block_size = options_.block_size;
    view.num_pages = num_pages_;
    const int64_t tiles = options_.block_size / kTileTokens;
    view.k_stride[1] = tiles * tile_bytes_k(options_.format.k, shape_.head_dim_k);
    view.v_stride[1] = tiles * tile_bytes_v(options_.format.v, shape_.head_dim_v);
    view.k_stride[0] = view.k_stride[1] * shape_.num_kv_heads;
    view.v_stride[0] = view.v_stride[1] * shape_.num_kv_heads;
    view.page_indptr = page_indptr_;
    view.page_ids = page_ids_;
    view.first_pos = first_pos_;
    view.kv_len = kv_len_;
    if (is_rotated(options_.format.k)) view.key_transform = rotated_keys(shape_.head_dim_k);
    return view;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;

  void assign_pages() {
    const int used = page_indptr_.back();
    num_pages_ = options_.shuffled ? 2 * used + 3 : used;
    std::vector<int32_t> ids(static_cast<size_t>(num_pages_));
    std::iota(ids.begin(), ids.end(), 0);
    for (int i = num_pages_ - 1; options_.shuffled && i > 0; --i) {
      std::swap(ids[static_cast<size_t>(i)],
                ids[static_cast<size_t>(below(99, static_cast<uint64_t>(i), i + 1))]);
    }
    ids.resize(static_cast<size_t>(used));
    page_ids_ = std::move(ids);
  }

  static Memory aligned(int64_t bytes) {
    const int64_t rounded = round_up(bytes + 1, kLineBytes);
    return Memory(static_cast<std::byte*>(
        std::aligned_alloc(static_cast<size_t>(kLineBytes), static_cast<size_t>(rounded))));
  }

  void poison(std::byte* data, int64_t bytes, KvCode code) const {
    const float value = options_.poison == Poison::nan     ? NAN
                        : options_.poison == Poison::large ? 1e4f
                                                           : 0.0f;
    const uint16_t half = code == KvCode::f16 ? f32_to_f16(value) : f32_to_bf16(value);
    if (is_packed(code)) {
      // Every code and scale: NaN scales, or large ones (in f32 larger still).
      if (options_.poison == Poison::nan) {
        std::memset(data, 0xff, static_cast<size_t>(bytes));
      } else {
        const uint16_t scale = f32_to_f16(value);
        for (int64_t i = 0; i < bytes; i += 2) std::memcpy(data + i, &scale, 2);
      }
      return;
    }
    for (int64_t i = 0; i < bytes; i += kv_code_bytes(code)) {
      if (code == KvCode::f32) {
        std::memcpy(data + i, &value, 4);
      } else {
        std::memcpy(data + i, &half, 2);
      }
    }
  }

  void allocate() {
    const MutableKvView shape = view();
    const int64_t k_bytes = shape.k_stride[0] * num_pages_;
    const int64_t v_bytes = shape.v_stride[0] * num_pages_;
    k_ = aligned(k_bytes);
    v_ = aligned(v_bytes);
    poison(k_.get(), k_bytes, options_.format.k);
    poison(v_.get(), v_bytes, options_.format.v);
  }

  void store(int seq, const SequenceRows& rows) {
    const MutableKvView to = view();
    for (int i = 0; i < rows.kv_len; ++i) {
      const int64_t page = page_ids_[static_cast<size_t>(page_indptr_[static_cast<size_t>(seq)] +
                                                         i / options_.block_size)];
      const int64_t tile = i % options_.block_size / kTileTokens;
      for (int head = 0; head < shape_.num_kv_heads; ++head) {
        const int64_t row = int64_t{i} * shape_.num_kv_heads + head;
        encode_k_row(to.format.k, k_tile(to, page, tile, head), i % kTileTokens,
                     reinterpret_cast<const std::byte*>(rows.k.data() + row * shape_.head_dim_k),
                     DType::f32, shape_.head_dim_k);
        encode_v_row(to.format.v, v_tile(to, page, tile, head), i % kTileTokens,
                     reinterpret_cast<const std::byte*>(rows.v.data() + row * shape_.head_dim_v),
                     DType::f32, shape_.head_dim_v);
      }
    }
  }

  KvShape shape_;
  TiledOptions options_;
  int num_pages_ = 0;
  std::vector<int32_t> page_indptr_, page_ids_, first_pos_, kv_len_;
  Memory k_, v_;
};

// Random rows: token i of sequence b is the same whatever the other sequences are.
inline SequenceRows random_rows(uint64_t seed, int kv_len, const KvShape& shape) {
  const int64_t rows = int64_t{kv_len} * shape.num_kv_heads;
  return {kv_len, bell(2 * seed, rows * shape.head_dim_k),
          bell(2 * seed + 1, rows * shape.head_dim_v)};
}

}  // namespace kvik::test
