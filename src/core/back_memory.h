// Backing parts of a reserved address range with memory: shared by Buffer and StripedBuffer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvik/core/status.h"

namespace kvik::internal {

// Backs bytes [from, to) of the mapping at `data` (aligned to 2 MiB) with populated memory, whole
// 2 MiB stretches with huge pages where the system offers them. `from` and `to` are multiples of
// the page size. Bytes already backed keep their content, fresh ones are zero. Errors:
// out_of_memory; the content of the range is then lost.
Status back_memory(std::byte* data, int64_t from, int64_t to);

// Bytes of pages in [data, data + bytes) that the system holds in memory now (mincore).
int64_t resident_in(const std::byte* data, int64_t bytes);

}  // namespace kvik::internal
