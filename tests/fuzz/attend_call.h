// An attention call made from arbitrary bytes, with the memory that it names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "fuzz/byte_reader.h"
#include "kvik/attention/attention.h"
#include "kvik/core/dtype.h"
#include "support/random.h"

namespace kvik::test {

// Bytes of exactly known size on a 64-byte boundary, so that a sanitizer sees one byte too many.
class OwnedBytes {
 public:
  OwnedBytes() = default;
  explicit OwnedBytes(int64_t size)
      : data_(static_cast<std::byte*>(::operator new(static_cast<size_t>(size), kAlignment))),
        size_(size) {}

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  int64_t size() const { return size_; }

  // Elements of `dtype` in (-4, 4), or random bits: infinities, NaN, subnormal numbers.
  void fill(uint64_t seed, DType dtype, bool random_bits) {
    for (int64_t i = 0; (i + 1) * dtype_bytes(dtype) <= size_; ++i) {
      const auto at = static_cast<uint64_t>(i);
      const float x = bell_at(seed, at);
      uint32_t bits = 0;
      if (random_bits) {
        bits = static_cast<uint32_t>(hash64(seed, at));
      } else if (dtype == DType::f32) {
        std::memcpy(&bits, &x, sizeof bits);
      } else {
        bits = dtype == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x);
      }
      std::memcpy(data() + i * dtype_bytes(dtype), &bits, static_cast<size_t>(dtype_bytes(dtype)));
    }
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t size_ = 0;
};

// One call and all that it borrows. The bytes first choose a good call, then up to three things in
// it that are made odd. Not movable: the call points into it.
class FuzzedCall {
 public:
  explicit FuzzedCall(ByteReader& bytes);
  FuzzedCall(const FuzzedCall&) = delete;
  FuzzedCall& operator=(const FuzzedCall&) = delete;

  const AttentionCall& call() const { return call_; }
  // Whether all keys, values and queries are small numbers and the scale is at most 1: then outputs
  // can be compared.
  bool is_tame() const { return is_tame_; }

  // Requires: check(call()) is ok. Whether the memory that the call may touch is what this object
  // owns; strides are the caller's word, the checked door cannot know better.
  bool fits() const;
  // Requires: fits(). Multiplications of the call, roughly.
  double work() const;

  OwnedBytes& out() { return out_; }
  OwnedBytes& lse() { return lse_; }
  OwnedBytes& lse_keys() { return lse_keys_; }

 private:
  struct Storage {
    OwnedBytes k, v;
    std::vector<int32_t> page_indptr, page_ids, first_pos, kv_len;
    KeyTransform transform;
  };

  void build_queries(ByteReader& bytes);
  void build_segments(ByteReader& bytes);
  void build_sequences(ByteReader& bytes, Storage& storage, KvView& view);
  void build_memory(ByteReader& bytes, Storage& storage, KvView& view);
  void build_params(ByteReader& bytes);
  // The places of all numbers of the call.
  void list_numbers();
  void make_odd(ByteReader& bytes);

  int num_seqs_ = 0, num_kv_heads_ = 1, num_heads_ = 1, head_dim_k_ = 0, head_dim_v_ = 0;
  bool is_tame_ = true;
  OwnedBytes q_, out_, lse_, lse_keys_;
  std::vector<int32_t> query_indptr_;
  std::list<Storage> storage_;
  std::vector<Segment> segments_;
  std::vector<float> sinks_;
  std::vector<int64_t*> numbers64_;
  std::vector<int32_t*> numbers32_;
  AttentionCall call_;
};

}  // namespace kvik::test
