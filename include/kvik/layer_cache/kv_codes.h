// The rows of one layer as they are stored, out of one cache and into another without a change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/format/kv_format.h"
#include "kvik/layer_cache/kv_arrays.h"

namespace kvik {

// rows    [B, H_kv, T, row bytes]: a row is packed_row_bytes (docs/formats.md), of a plain code its
//         elements
// tiles   [B, ceil(T / 16), H_kv, tile bytes]: as caches hold them (docs/tile-layout.md); slots
//         behind the last row are zero
enum class KvCodeLayout : uint8_t { rows, tiles };

// "rows", "tiles".
KVIK_API std::string_view kv_code_layout_name(KvCodeLayout layout);
// Errors: invalid_argument that lists the names.
KVIK_API Result<KvCodeLayout> parse_kv_code_layout(std::string_view name);

// Row-major, no padding between the rows or tiles. The content never changes while `owner` is held;
// null for borrowed memory.
struct KvCodes {
  KvFormat format;
  KvArrayShape shape;  // of the rows; the dtypes are those in which they are decoded
  int64_t num_rows = 0;
  KvCodeLayout layout = KvCodeLayout::rows;
  std::span<const std::byte> keys, values;
  std::shared_ptr<const void> owner;
};

// Sizes of the two spans. Errors: invalid_argument for numbers out of range, and for head dims that
// the format does not store.
struct KvCodesBytes {
  int64_t keys = 0;
  int64_t values = 0;
};
KVIK_API Result<KvCodesBytes> kv_codes_bytes(KvFormat format, const KvArrayShape& shape,
                                             int64_t num_rows, KvCodeLayout layout);

}  // namespace kvik
