// Equal ranges of one address reservation that grow together, so that rows of several heads can be
// kept head by head, each consecutive, and still never move.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvik/core/buffer.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// `num_stripes` ranges of the same size, stripe i starting at data() + i * stripe_stride(). The
// first committed_bytes() of each stripe are backed by populated memory; committing moves nothing
// and writes nothing to bytes already committed. Fresh memory is zero. Move-only.
//
// The stride is a multiple of 64 bytes and of no larger power of two, so that the same row of all
// stripes does not fall into one cache set.
//
// Threads: one at a time, except that committed bytes may be used while more are committed.
class KVIK_API StripedBuffer {
 public:
  StripedBuffer() = default;
  // Reserves address space for `num_stripes` stripes of at least `stripe_bytes`; backs none of it.
  // Errors: invalid_argument for a negative number or a product beyond 2^63; out_of_memory when
  // the system refuses.
  static Result<StripedBuffer> reserve(int64_t num_stripes, int64_t stripe_bytes);

  // Makes at least the first `bytes` bytes of every stripe usable, in the steps of Buffer::commit.
  // Errors: invalid_argument for a negative size; out_of_memory (beyond stripe_bytes(), or refused
  // by the system), committed_bytes() unchanged.
  Status commit(int64_t bytes);

  std::byte* data() const { return buffer_.data(); }
  int64_t num_stripes() const { return num_stripes_; }
  // Bytes from one stripe to the next.
  int64_t stripe_stride() const { return stride_; }
  // Size of a stripe, and the part of it that is backed.
  int64_t stripe_bytes() const { return stripe_bytes_; }
  int64_t committed_bytes() const { return committed_bytes_; }
  // Over all stripes: memory that the system holds now.
  int64_t resident_bytes() const;

 private:
  Buffer buffer_;  // only its reservation is used; stripes are committed one by one
  int64_t num_stripes_ = 0;
  int64_t stripe_bytes_ = 0;
  int64_t stride_ = 0;
  int64_t committed_bytes_ = 0;
};

}  // namespace kvik
