// Address space reserved once and backed step by step, so that growth never moves a byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// A reserved address range of which a prefix is committed (backed by populated memory). Committing
// writes nothing to bytes already committed and moves nothing: addresses stay valid for the life of
// the buffer. Fresh memory is zero. Move-only; the mapping is released on destruction.
// Threads: one at a time, except that committed bytes may be used while another part is committed.
class KVIK_API Buffer {
 public:
  Buffer() = default;
  // Reserves address space for `reserved_bytes` (rounded up to 2 MiB); backs none of it.
  // Errors: invalid_argument for a negative size, out_of_memory when the system refuses.
  static Result<Buffer> reserve(int64_t reserved_bytes);

  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  // Makes at least the first `bytes` bytes usable. The step is the larger of what is asked for and
  // min(2 MiB, 1/32 of what is committed), at least 64 KiB and never past the reservation; whole
  // 2 MiB stretches of a step are backed by huge pages where the system offers them.
  // Errors: invalid_argument for a negative size, out_of_memory (beyond the reservation, or refused
  // by the system); nothing changes then.
  Status commit(int64_t bytes);

  // The step that commit() takes by itself from the present size, in bytes.
  int64_t growth_step_bytes() const;

  std::byte* data() const { return data_; }
  int64_t reserved_bytes() const { return reserved_bytes_; }
  int64_t committed_bytes() const { return committed_bytes_; }
  // Pages of the committed part that the system holds in memory now (mincore).
  int64_t resident_bytes() const;

 private:
  std::byte* data_ = nullptr;
  int64_t reserved_bytes_ = 0;
  int64_t committed_bytes_ = 0;
};

// Bytes of memory that the machine, or the container's limit, could still give; INT64_MAX if
// unknown.
KVIK_API int64_t available_memory_bytes();

}  // namespace kvik
