#include "kvik/core/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/back_memory.h"
#include "core/growth_rule.h"
#include "kvik/core/checked_math.h"

namespace kvik {
namespace {

using internal::kHugePageBytes;
// From this size on a step first asks how much memory is left (a read of two small files).
constexpr int64_t kLargeStepBytes = int64_t{64} << 20;

// Backs [begin, end) with memory now, so that no later write faults. 0, or an errno.
int populate(std::byte* begin, std::byte* end) {
  if (begin == end) return 0;
  const auto bytes = static_cast<size_t>(end - begin);
#ifdef MADV_POPULATE_WRITE
  for (;;) {
    if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno == EINVAL) break;  // a kernel before 5.14: touch the pages instead
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
#endif
  // The bytes are fresh, hence zero; writing zero changes nothing but backs the page.
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (std::byte* p = begin; p < end; p += page)
    *static_cast<volatile std::byte*>(p) = std::byte{0};
  return 0;
}

}  // namespace

Status internal::back_memory(std::byte* data, int64_t from, int64_t to) {
  // Populating more than there is would not fail: the system would kill the process.
  if (const int64_t step = to - from; step >= kLargeStepBytes && step > available_memory_bytes()) {
    return {StatusCode::out_of_memory, "no memory for " + std::to_string(step) +
                                           " more bytes: the machine has " +
                                           std::to_string(available_memory_bytes()) + " left"};
  }
  std::byte* const begin = data + from;
  std::byte* const end = data + to;
  // Ask for huge pages only where a whole one lies inside this step: elsewhere the first touch
  // would back 2 MiB at once, and a small cache would pay for memory that it does not use.
  std::byte* const huge_begin = data + round_up(from, kHugePageBytes);
  std::byte* const huge_end = data + to / kHugePageBytes * kHugePageBytes;
  if (huge_begin < huge_end) {
    madvise(huge_begin, static_cast<size_t>(huge_end - huge_begin), MADV_HUGEPAGE);
  }
  if (const int error = populate(begin, end); error != 0) {
    madvise(begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
    return {StatusCode::out_of_memory, "the system refused " + std::to_string(end - begin) +
                                           " more bytes of memory (" + std::strerror(error) + ")"};
  }
  return {};
}

int64_t internal::resident_in(const std::byte* data, int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::array<unsigned char, 4096> map{};
  int64_t resident = 0;
  for (int64_t offset = 0; offset < bytes;) {
    const int64_t span = std::min<int64_t>(bytes - offset, static_cast<int64_t>(map.size()) * page);
    if (mincore(const_cast<std::byte*>(data) + offset, static_cast<size_t>(span), map.data()) != 0)
      return resident;
    const int64_t num_pages = ceil_div(span, page);
    for (int64_t i = 0; i < num_pages; ++i) resident += (map[static_cast<size_t>(i)] & 1) * page;
    offset += span;
  }
  return resident;
}

Result<Buffer> Buffer::reserve(int64_t reserved_bytes) {
  if (reserved_bytes < 0) {
    return invalid_argument("cannot reserve " + std::to_string(reserved_bytes) + " bytes");
  }
  Buffer buffer;
  if (reserved_bytes == 0) return buffer;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() - 2 * kHugePageBytes;
  const int64_t rounded = reserved_bytes > kMost ? -1 : round_up(reserved_bytes, kHugePageBytes);
  void* mapped = MAP_FAILED;
  if (rounded > 0) {
    // Mapped one huge page larger, then trimmed, so that the start is aligned for huge pages.
    mapped = mmap(nullptr, static_cast<size_t>(rounded + kHugePageBytes), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (mapped == MAP_FAILED) {
    return Status(StatusCode::out_of_memory,
                  "cannot reserve " + std::to_string(reserved_bytes) +
                      " bytes of address space; ask for fewer tokens or raise `ulimit -v`");
  }
  auto* start = static_cast<std::byte*>(mapped);
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(start)) % kHugePageBytes;
  const int64_t head = misaligned == 0 ? 0 : kHugePageBytes - misaligned;
  if (head > 0) munmap(start, static_cast<size_t>(head));
  if (head < kHugePageBytes) {
    munmap(start + head + rounded, static_cast<size_t>(kHugePageBytes - head));
  }
  // Where the system gives huge pages unasked, the first touch of a small buffer would cost 2 MiB.
  madvise(start + head, static_cast<size_t>(rounded), MADV_NOHUGEPAGE);
  buffer.data_ = start + head;
  buffer.reserved_bytes_ = rounded;
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      reserved_bytes_(std::exchange(other.reserved_bytes_, 0)),
      committed_bytes_(std::exchange(other.committed_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(reserved_bytes_, other.reserved_bytes_);
  std::swap(committed_bytes_, other.committed_bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(reserved_bytes_));
}

int64_t Buffer::growth_step_bytes() const { return internal::growth_step(committed_bytes_); }

Status Buffer::commit(int64_t bytes) {
  if (bytes < 0) return invalid_argument("cannot commit " + std::to_string(bytes) + " bytes");
  if (bytes <= committed_bytes_) return {};
  if (bytes > reserved_bytes_) {
    return {StatusCode::out_of_memory, "a buffer of " + std::to_string(reserved_bytes_) +
                                           " reserved bytes cannot hold " + std::to_string(bytes)};
  }
  const int64_t target = internal::committed_after(committed_bytes_, bytes, reserved_bytes_);
  if (Status status = internal::back_memory(data_, committed_bytes_, target); !status.ok()) {
    return status;
  }
  committed_bytes_ = target;
  return {};
}

int64_t Buffer::resident_bytes() const { return internal::resident_in(data_, committed_bytes_); }

int64_t available_memory_bytes() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    int64_t value = 0;
    if (key == "MemAvailable:" && meminfo >> value) available = value * 1024;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");
  std::ifstream used_file("/sys/fs/cgroup/memory.current");
  int64_t limit = 0;
  int64_t used = 0;
  if (limit_file >> limit && used_file >> used) available = std::min(available, limit - used);
  return available;
}

}  // namespace kvik
