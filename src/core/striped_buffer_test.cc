#include "kvik/core/striped_buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

namespace kvik {
namespace {

TEST(StripedBuffer, GrowsEveryStripeInPlaceAndKeepsItsBytes) {
  Result<StripedBuffer> made = StripedBuffer::reserve(5, 1 << 20);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  StripedBuffer buffer = std::move(made).value();
  std::byte* const data = buffer.data();
  int64_t written = 0;
  for (const int64_t bytes : {1, 4096, 70000, 65536 * 3 + 1, 1 << 20}) {
    ASSERT_TRUE(buffer.commit(bytes).ok());
    ASSERT_GE(buffer.committed_bytes(), bytes);
    for (int i = 0; i < 5; ++i) {
      std::byte* const stripe = data + i * buffer.stripe_stride();
      for (int64_t b = written; b < bytes; ++b) ASSERT_EQ(stripe[b], std::byte{0});
      std::memset(stripe + written, 0x40 + i, static_cast<size_t>(bytes - written));
    }
    written = bytes;
    EXPECT_EQ(buffer.data(), data);
  }
  for (int i = 0; i < 5; ++i) {
    for (int64_t b = 0; b < written; ++b) {
      ASSERT_EQ(data[i * buffer.stripe_stride() + b], std::byte(0x40 + i)) << i << ' ' << b;
    }
  }
  EXPECT_GE(buffer.resident_bytes(), 5 * (int64_t{1} << 20));
}

TEST(StripedBuffer, StartsStripesOffPowersOfTwo) {
  Result<StripedBuffer> buffer = StripedBuffer::reserve(8, 1 << 20);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->stripe_stride() % 64, 0);
  EXPECT_NE(buffer->stripe_stride() % 128, 0);
  EXPECT_GE(buffer->stripe_stride(), 1 << 20);
}

TEST(StripedBuffer, RefusesWhatIsBeyondTheReservationAndChangesNothing) {
  Result<StripedBuffer> buffer = StripedBuffer::reserve(2, 100000);
  ASSERT_TRUE(buffer.ok());
  ASSERT_TRUE(buffer->commit(1000).ok());
  const int64_t before = buffer->committed_bytes();
  EXPECT_EQ(buffer->commit(100001).code(), StatusCode::out_of_memory);
  EXPECT_EQ(buffer->commit(-1).code(), StatusCode::invalid_argument);
  EXPECT_EQ(buffer->committed_bytes(), before);
  EXPECT_TRUE(buffer->commit(100000).ok());
}

TEST(StripedBuffer, RefusesSizesThatOverflow) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(StripedBuffer::reserve(2, kHuge).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(StripedBuffer::reserve(kHuge, 2).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(StripedBuffer::reserve(-1, 2).status().code(), StatusCode::invalid_argument);
  EXPECT_FALSE(StripedBuffer::reserve(int64_t{1} << 20, int64_t{1} << 40).ok());
}

TEST(StripedBuffer, HoldsNothingForStripesOfNoBytes) {
  Result<StripedBuffer> buffer = StripedBuffer::reserve(4, 0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_TRUE(buffer->commit(0).ok());
  EXPECT_EQ(buffer->commit(1).code(), StatusCode::out_of_memory);
  EXPECT_EQ(buffer->resident_bytes(), 0);
}

}  // namespace
}  // namespace kvik
