// Keys and values as template arguments, so that a loop over either side is written once.
#pragma once

#include "kvik/format/kv_view.h"
#include "kvik/format/packed_code.h"
#include "kvik/format/plain_rows.h"
#include "kvik/format/row_codec.h"
#include "kvik/format/tile.h"

namespace kvik::internal {

struct KeySide {
  static KvCode code(const KvFormat& format) { return format.k; }
  template <class Byte>
  static int head_dim(const BasicKvView<Byte>& view) {
    return view.head_dim_k;
  }
  template <class Byte>
  static Byte* tile(const BasicKvView<Byte>& view, int64_t page, int64_t tile_in_page, int head) {
    return k_tile(view, page, tile_in_page, head);
  }
  static constexpr auto tile_bytes = &tile_bytes_k;
  static constexpr auto decode = &decode_k_row;
  static constexpr auto unpack = &unpack_k_tile;
  static constexpr auto export_row = &export_k_row;
  static constexpr auto import_row = &import_k_row;
  static constexpr auto encode = &encode_k_row;
};

struct ValueSide {
  static KvCode code(const KvFormat& format) { return format.v; }
  template <class Byte>
  static int head_dim(const BasicKvView<Byte>& view) {
    return view.head_dim_v;
  }
  template <class Byte>
  static Byte* tile(const BasicKvView<Byte>& view, int64_t page, int64_t tile_in_page, int head) {
    return v_tile(view, page, tile_in_page, head);
  }
  static constexpr auto tile_bytes = &tile_bytes_v;
  static constexpr auto decode = &decode_v_row;
  static constexpr auto unpack = &unpack_v_tile;
  static constexpr auto export_row = &export_v_row;
  static constexpr auto import_row = &import_v_row;
  static constexpr auto encode = &encode_v_row;
};

// One row, in the bytes of its code, into slot `slot` of a tile: a packed row is imported, the
// elements of a plain one are copied.
template <class Side>
void put_row(KvCode code, std::byte* tile, int slot, std::span<const std::byte> row, int head_dim) {
  if (is_packed(code)) return Side::import_row(code, tile, slot, row, head_dim);
  Side::encode(code, tile, slot, row.data(), dtype_of(code), head_dim);
}

}  // namespace kvik::internal
