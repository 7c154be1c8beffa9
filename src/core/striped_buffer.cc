#include "kvik/core/striped_buffer.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/back_memory.h"
#include "core/growth_rule.h"
#include "kvik/core/checked_math.h"

namespace kvik {
namespace {

// Stripes lie at least two pages apart: the pages of one never hold a byte of another, whatever
// their starts. The odd number of lines spreads equal rows of all stripes over the cache sets.
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kGapBytes = 2 * kPageBytes + 3 * 64;

int64_t stride_for(int64_t stripe_bytes) { return round_up(stripe_bytes, kPageBytes) + kGapBytes; }

}  // namespace

Result<StripedBuffer> StripedBuffer::reserve(int64_t num_stripes, int64_t stripe_bytes) {
  if (num_stripes < 0 || stripe_bytes < 0) {
    return invalid_argument("cannot reserve " + std::to_string(num_stripes) + " stripes of " +
                            std::to_string(stripe_bytes) + " bytes");
  }
  StripedBuffer striped;
  striped.num_stripes_ = num_stripes;
  striped.stripe_bytes_ = stripe_bytes;
  if (num_stripes == 0 || stripe_bytes == 0) return striped;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;
  const auto total = stripe_bytes > kMost
                         ? std::nullopt
                         : checked_product({num_stripes, stride_for(stripe_bytes)});
  if (!total || *total > kMost) {
    return invalid_argument(std::to_string(num_stripes) + " stripes of " +
                            std::to_string(stripe_bytes) + " bytes exceed 2^63 bytes");
  }
  Result<Buffer> buffer = Buffer::reserve(*total);
  if (!buffer.ok()) return buffer.status();
  striped.buffer_ = std::move(buffer).value();
  striped.stride_ = stride_for(stripe_bytes);
  return striped;
}

Status StripedBuffer::commit(int64_t bytes) {
  if (bytes < 0) return invalid_argument("cannot commit " + std::to_string(bytes) + " bytes");
  if (bytes <= committed_bytes_) return {};
  if (bytes > stripe_bytes_) {
    return {StatusCode::out_of_memory, "a stripe of " + std::to_string(stripe_bytes_) +
                                           " reserved bytes cannot hold " + std::to_string(bytes)};
  }
  const int64_t target = internal::committed_after(committed_bytes_, bytes, stripe_bytes_);
  const int64_t page = std::max<int64_t>(kPageBytes, sysconf(_SC_PAGESIZE));
  // A step over all stripes is one step: many small ones must not slip past the check of memory.
  if (const int64_t wanted = (target - committed_bytes_) * num_stripes_;
      wanted >= (int64_t{64} << 20) && wanted > available_memory_bytes()) {
    return {StatusCode::out_of_memory, "no memory for " + std::to_string(wanted) +
                                           " more bytes: the machine has " +
                                           std::to_string(available_memory_bytes()) + " left"};
  }
  for (int64_t i = 0; i < num_stripes_; ++i) {
    // The page that holds the last committed byte is backed already.
    const int64_t begin = i * stride_;
    const int64_t from =
        committed_bytes_ == 0 ? begin / page * page : round_up(begin + committed_bytes_, page);
    const int64_t to = round_up(begin + target, page);
    if (from >= to) continue;
    if (Status status = internal::back_memory(buffer_.data(), from, to); !status.ok()) {
      return status;
    }
  }
  committed_bytes_ = target;
  return {};
}

int64_t StripedBuffer::resident_bytes() const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  int64_t resident = 0;
  for (int64_t i = 0; committed_bytes_ > 0 && i < num_stripes_; ++i) {
    const int64_t from = i * stride_ / page * page;
    resident += internal::resident_in(buffer_.data() + from,
                                      round_up(i * stride_ + committed_bytes_, page) - from);
  }
  return resident;
}

}  // namespace kvik
