#include "kvik/core/buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kvik/core/check.h"

namespace kvik {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

Buffer reserve(int64_t bytes) {
  Result<Buffer> buffer = Buffer::reserve(bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status().to_string();
  return std::move(buffer).value();
}

bool all_equal(const std::byte* begin, const std::byte* end, int value) {
  return std::all_of(begin, end, [value](std::byte b) { return std::to_integer<int>(b) == value; });
}

void fill(std::byte* begin, std::byte* end, int value) {
  KVIK_CHECK(begin <= end, "a range to fill must not be reversed");
  std::fill(begin, end, static_cast<std::byte>(value));
}

// Bytes of memory that the kernel has given to mappings that meet [begin, begin + bytes).
int64_t kernel_resident_bytes(const void* begin, int64_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t last = first + static_cast<uintptr_t>(bytes);
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  int64_t total = 0;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t low = 0;
    uintptr_t high = 0;
    int64_t kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &low, &high) == 2) {
      inside = low < last && high > first;
    } else if (inside && std::sscanf(line.c_str(), "Rss: %ld kB", &kib) == 1) {
      total += kib * kKiB;
    }
  }
  return total;
}

int64_t address_space_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(Buffer, IsEmptyByDefaultAndWhenNothingIsReserved) {
  const Buffer made = Buffer();
  const Buffer reserved = reserve(0);
  for (const Buffer* each : {&made, &reserved}) {
    const Buffer& buffer = *each;
    EXPECT_EQ(buffer.data(), nullptr);
    EXPECT_EQ(buffer.reserved_bytes(), 0);
    EXPECT_EQ(buffer.committed_bytes(), 0);
    EXPECT_EQ(buffer.resident_bytes(), 0);
  }
  Buffer empty;
  EXPECT_TRUE(empty.commit(0).ok());
  EXPECT_EQ(empty.commit(1).code(), StatusCode::out_of_memory);
}

TEST(Buffer, ReservesWholeHugePagesAlignedToThem) {
  const Buffer small = reserve(1);
  EXPECT_EQ(small.reserved_bytes(), 2 * kMiB);
  const Buffer exact = reserve(4 * kMiB);
  EXPECT_EQ(exact.reserved_bytes(), 4 * kMiB);
  const Buffer more = reserve(4 * kMiB + 1);
  EXPECT_EQ(more.reserved_bytes(), 6 * kMiB);
  for (const Buffer* buffer : {&small, &exact, &more}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % (2 * kMiB), 0u);
  }
}

TEST(Buffer, ReservationAloneTakesNoMemory) {
  const Buffer buffer = reserve(int64_t{64} << 30);
  EXPECT_EQ(buffer.committed_bytes(), 0);
  EXPECT_EQ(kernel_resident_bytes(buffer.data(), buffer.reserved_bytes()), 0);
}

TEST(Buffer, FreshMemoryIsZeroInEveryStep) {
  Buffer buffer = reserve(64 * kMiB);
  int64_t seen = 0;
  while (seen < 40 * kMiB) {
    ASSERT_TRUE(buffer.commit(seen + 1).ok());
    const int64_t committed = buffer.committed_bytes();
    ASSERT_TRUE(all_equal(buffer.data() + seen, buffer.data() + committed, 0)) << seen;
    fill(buffer.data() + seen, buffer.data() + committed, 0xff);
    seen = committed;
  }
}

TEST(Buffer, GrowthMovesNothingAndWritesNothingToWhatIsThere) {
  Buffer buffer = reserve(64 * kMiB);
  std::byte* const address = buffer.data();
  int step = 0;
  std::vector<int64_t> ends = {0};
  while (buffer.committed_bytes() < 24 * kMiB) {
    ASSERT_TRUE(buffer.commit(buffer.committed_bytes() + 1 + step * 31 * kKiB).ok());
    ASSERT_EQ(buffer.data(), address);
    fill(address + ends.back(), address + buffer.committed_bytes(), 1 + step % 250);
    ends.push_back(buffer.committed_bytes());
    ++step;
  }
  for (int i = 0; i < step; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_TRUE(all_equal(address + ends[at], address + ends[at + 1], 1 + i % 250)) << i;
  }
}

TEST(Buffer, StepIsAThirtySecondOfWhatIsCommittedBetween64KiBAnd2MiB) {
  Buffer buffer = reserve(256 * kMiB);
  for (int64_t committed = 0; committed < 100 * kMiB; committed = buffer.committed_bytes()) {
    const int64_t share = std::min(2 * kMiB, committed / 32);
    const int64_t step = buffer.growth_step_bytes();
    ASSERT_GE(step, 64 * kKiB);
    ASSERT_LE(step, std::max(64 * kKiB, share)) << committed;
    ASSERT_GT(step, share - 64 * kKiB) << committed;  // whole 64 KiB pieces
    ASSERT_TRUE(buffer.commit(committed + 1).ok());
    ASSERT_EQ(buffer.committed_bytes(), committed + step);
  }
}

TEST(Buffer, CommitsWhatIsAskedForWhenThatIsMoreThanAStep) {
  Buffer buffer = reserve(64 * kMiB);
  ASSERT_TRUE(buffer.commit(10 * kMiB).ok());
  EXPECT_EQ(buffer.committed_bytes(), 10 * kMiB);
  ASSERT_TRUE(buffer.commit(20 * kMiB + 1).ok());
  EXPECT_EQ(buffer.committed_bytes(), 20 * kMiB + 64 * kKiB);
  ASSERT_TRUE(buffer.commit(5).ok());
  EXPECT_EQ(buffer.committed_bytes(), 20 * kMiB + 64 * kKiB) << "a commit never shrinks";
}

TEST(Buffer, LastStepEndsAtTheReservation) {
  Buffer buffer = reserve(66 * kMiB);
  ASSERT_TRUE(buffer.commit(66 * kMiB - 100 * kKiB).ok());
  ASSERT_TRUE(buffer.commit(66 * kMiB - 10 * kKiB).ok());
  EXPECT_EQ(buffer.committed_bytes(), 66 * kMiB);
  EXPECT_TRUE(buffer.commit(66 * kMiB).ok());
}

TEST(Buffer, CommittedMemoryIsResidentBeforeAnyoneTouchesIt) {
  Buffer buffer = reserve(64 * kMiB);
  for (const int64_t bytes : {64 * kKiB, 3 * kMiB, 20 * kMiB, 40 * kMiB}) {
    ASSERT_TRUE(buffer.commit(bytes).ok());
    EXPECT_EQ(buffer.resident_bytes(), buffer.committed_bytes());
    EXPECT_GE(kernel_resident_bytes(buffer.data(), buffer.reserved_bytes()),
              buffer.committed_bytes());
  }
}

TEST(Buffer, ResidentBytesAreReadFromTheSystem) {
  Buffer buffer = reserve(8 * kMiB);
  ASSERT_TRUE(buffer.commit(1 * kMiB).ok());
  ASSERT_EQ(madvise(buffer.data() + 128 * kKiB, 512 * kKiB, MADV_DONTNEED), 0);
  EXPECT_EQ(buffer.resident_bytes(), 512 * kKiB);
}

TEST(Buffer, ASmallBufferDoesNotPayForAHugePage) {
  Buffer buffer = reserve(64 * kMiB);
  while (buffer.committed_bytes() < 4 * kMiB) {
    ASSERT_TRUE(buffer.commit(buffer.committed_bytes() + 1).ok());
    ASSERT_EQ(kernel_resident_bytes(buffer.data(), buffer.reserved_bytes()),
              buffer.committed_bytes());
  }
}

TEST(Buffer, RefusesMoreThanItsReservationAndChangesNothing) {
  Buffer buffer = reserve(2 * kMiB);
  ASSERT_TRUE(buffer.commit(64 * kKiB).ok());
  fill(buffer.data(), buffer.data() + 64 * kKiB, 7);
  for (const int64_t bytes : {2 * kMiB + 1, 3 * kMiB, kMaxInt64 - 1, kMaxInt64}) {
    const Status status = buffer.commit(bytes);
    EXPECT_EQ(status.code(), StatusCode::out_of_memory);
    EXPECT_NE(status.message().find(std::to_string(bytes)), std::string::npos) << status.message();
    EXPECT_EQ(buffer.committed_bytes(), 64 * kKiB);
    EXPECT_EQ(buffer.reserved_bytes(), 2 * kMiB);
  }
  EXPECT_TRUE(all_equal(buffer.data(), buffer.data() + 64 * kKiB, 7));
  EXPECT_TRUE(buffer.commit(2 * kMiB).ok()) << "usable after a refusal";
}

TEST(Buffer, RefusesNegativeSizes) {
  for (const int64_t bytes : {int64_t{-1}, -2 * kMiB, std::numeric_limits<int64_t>::min()}) {
    const Result<Buffer> refused = Buffer::reserve(bytes);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(refused.status().message().find(std::to_string(bytes)), std::string::npos);

    Buffer buffer = reserve(2 * kMiB);
    EXPECT_EQ(buffer.commit(bytes).code(), StatusCode::invalid_argument);
    EXPECT_EQ(buffer.committed_bytes(), 0);
  }
}

TEST(Buffer, RefusesAbsurdSizesWithoutOverflow) {
  for (const int64_t bytes : {kMaxInt64, kMaxInt64 - 1, kMaxInt64 - 2 * kMiB, kMaxInt64 - 4 * kMiB,
                              kMaxInt64 - 4 * kMiB - 1, int64_t{1} << 62, int64_t{1} << 56}) {
    const Result<Buffer> refused = Buffer::reserve(bytes);
    ASSERT_FALSE(refused.ok()) << bytes;
    EXPECT_EQ(refused.status().code(), StatusCode::out_of_memory) << bytes;
    EXPECT_NE(refused.status().message().find(std::to_string(bytes)), std::string::npos);
  }
}

TEST(Buffer, RefusesACommitThatTheMachineCannotBack) {
  const int64_t available = available_memory_bytes();
  ASSERT_GT(available, 0);
  if (available > (int64_t{1} << 46)) GTEST_SKIP() << "the system does not say what is left";
  Buffer buffer = reserve(2 * available);
  ASSERT_TRUE(buffer.commit(1).ok());
  EXPECT_EQ(buffer.commit(2 * available).code(), StatusCode::out_of_memory);
  EXPECT_EQ(buffer.committed_bytes(), 64 * kKiB);
  EXPECT_LE(kernel_resident_bytes(buffer.data(), buffer.reserved_bytes()), 2 * kMiB);
}

// Runs in a child process, whose limit dies with it.
[[noreturn]] void reserve_under_a_limit() {
  const auto limit = static_cast<rlim_t>(address_space_bytes() + 256 * kMiB);
  const rlimit limits = {limit, limit};
  if (setrlimit(RLIMIT_AS, &limits) != 0) _exit(10);
  const Result<Buffer> refused = Buffer::reserve(512 * kMiB);
  if (refused.ok()) _exit(11);
  if (refused.status().code() != StatusCode::out_of_memory) _exit(12);
  Result<Buffer> fits = Buffer::reserve(32 * kMiB);
  if (!fits.ok()) _exit(13);
  if (!fits->commit(32 * kMiB).ok()) _exit(14);
  _exit(0);
}

TEST(BufferDeathTest, ALimitOnAddressSpaceIsOutOfMemoryAndLessStillFits) {
  EXPECT_EXIT(reserve_under_a_limit(), testing::ExitedWithCode(0), "");
}

// A hole in the mapping stands for memory that the system refuses in the middle of a step.
[[noreturn]] void commit_across_a_hole() {
  Result<Buffer> buffer = Buffer::reserve(8 * kMiB);
  if (!buffer.ok()) _exit(10);
  if (munmap(buffer->data() + 4 * kMiB, 4 * kMiB) != 0) _exit(11);
  if (!buffer->commit(1 * kMiB).ok()) _exit(12);
  const Status status = buffer->commit(6 * kMiB);  // runs into the hole
  if (status.code() != StatusCode::out_of_memory) _exit(13);
  if (buffer->committed_bytes() != 1 * kMiB) _exit(14);
  if (!buffer->commit(4 * kMiB).ok()) _exit(15);
  if (!all_equal(buffer->data(), buffer->data() + 4 * kMiB, 0)) _exit(16);
  _exit(0);
}

TEST(BufferDeathTest, ACommitThatTheSystemRefusesHalfWayChangesNothing) {
  EXPECT_EXIT(commit_across_a_hole(), testing::ExitedWithCode(0), "");
}

TEST(Buffer, MovingHandsTheMappingOver) {
  Buffer source = reserve(4 * kMiB);
  ASSERT_TRUE(source.commit(100 * kKiB).ok());
  std::byte* const address = source.data();
  const int64_t committed = source.committed_bytes();
  address[5] = std::byte{9};

  Buffer target(std::move(source));
  EXPECT_EQ(target.data(), address);
  EXPECT_EQ(target.reserved_bytes(), 4 * kMiB);
  EXPECT_EQ(target.committed_bytes(), committed);
  EXPECT_EQ(target.data()[5], std::byte{9});
  // NOLINTBEGIN(bugprone-use-after-move): a moved-from buffer is an empty one by contract
  EXPECT_EQ(source.data(), nullptr);
  EXPECT_EQ(source.reserved_bytes(), 0);
  EXPECT_EQ(source.committed_bytes(), 0);
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_TRUE(target.commit(1 * kMiB).ok());
}

TEST(Buffer, AssignmentReleasesTheOldMappingOnceAndSelfAssignmentKeepsIt) {
  const int64_t before = address_space_bytes();
  {
    Buffer target = reserve(512 * kMiB);
    {
      Buffer source = reserve(256 * kMiB);
      ASSERT_TRUE(source.commit(1).ok());
      source.data()[0] = std::byte{3};
      target = std::move(source);
    }
    EXPECT_EQ(target.reserved_bytes(), 256 * kMiB);
    EXPECT_EQ(target.data()[0], std::byte{3});
    EXPECT_LT(address_space_bytes() - before, 400 * kMiB) << "the old mapping must be gone";
    Buffer& self = target;
    target = std::move(self);
    EXPECT_EQ(target.reserved_bytes(), 256 * kMiB);
    EXPECT_EQ(target.data()[0], std::byte{3});
  }
  EXPECT_LT(address_space_bytes() - before, 100 * kMiB);
}

TEST(Buffer, ReleasesItsAddressSpace) {
  const int64_t before = address_space_bytes();
  for (int i = 0; i < 200; ++i) {
    Buffer buffer = reserve(int64_t{1} << 40);
    ASSERT_TRUE(buffer.commit(1).ok());
  }
  EXPECT_LT(address_space_bytes() - before, int64_t{1} << 40);
}

TEST(AvailableMemory, IsPositiveAndNotMoreThanTheMachineHas) {
  const int64_t total = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_LE(available_memory_bytes(), total);
}

}  // namespace
}  // namespace kvik
