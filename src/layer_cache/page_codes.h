// Rows between tiles and the forms in which they leave a cache: elements, and codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvik/core/status.h"
#include "kvik/core/tensor_view.h"
#include "kvik/format/kv_view.h"
#include "kvik/layer_cache/kv_codes.h"

namespace kvik::internal {

// The rows from `first` on of every sequence of `view`, as [B, H_kv, n, D] elements: bit for bit
// where the target's dtype is that of a plain code, else the values that the rows stand for,
// rounded to nearest even and to the largest number of the dtype where they exceed it. Requires:
// the targets row-major, rows [first, first + n) valid.
void decode_rows(const KvView& view, int64_t first, const TensorView& keys,
                 const TensorView& values);

// All rows of every sequence, as `codes` describes them. Requires: spans of kv_codes_bytes.
void read_codes(const KvView& view, KvCodeLayout layout, int64_t num_rows,
                std::span<std::byte> keys, std::span<std::byte> values);

// Codes as PagedCache::write_codes takes them: for each batch row, token and head, one row.
struct TokenCodes {
  std::unique_ptr<std::byte[]> memory;
  std::span<const std::byte> k, v;
};
// Requires: spans of kv_codes_bytes. Errors: out_of_memory.
Result<TokenCodes> token_codes(const KvCodes& codes);

}  // namespace kvik::internal
