#include "layer_cache/page_codes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "format/kv_sides.h"
#include "kvik/cache/paged_cache.h"
#include "kvik/core/check.h"
#include "kvik/core/checked_math.h"
#include "kvik/format/packed_code.h"
#include "kvik/format/plain_rows.h"
#include "layer_cache/names.h"

namespace kvik {

using internal::KeySide;
using internal::ValueSide;

namespace {

constexpr std::array kLayouts = {
    internal::Named<KvCodeLayout>{"rows", KvCodeLayout::rows},
    internal::Named<KvCodeLayout>{"tiles", KvCodeLayout::tiles},
};

// The tile that holds row `row` of sequence `b`.
template <class Side>
const std::byte* tile_of(const KvView& view, size_t b, int64_t row, int head) {
  const auto pages = view.page_ids.subspan(static_cast<size_t>(view.page_indptr[b]));
  const int64_t page = pages[static_cast<size_t>(row / view.block_size)];
  return Side::tile(view, page, row % view.block_size / kTileTokens, head);
}

float largest_of(DType dtype) {
  return dtype == DType::f16    ? 65504.0f
         : dtype == DType::bf16 ? bf16_to_f32(0x7f7f)
                                : 3.40282347e38f;
}

template <class Side>
void decode_side(const KvView& view, int64_t first, const TensorView& to) {
  const KvCode code = Side::code(view.format);
  const int head_dim = Side::head_dim(view);
  const int64_t size = dtype_bytes(to.dtype);
  const bool as_is = !is_packed(code) && dtype_of(code) == to.dtype;
  const float largest = largest_of(to.dtype);
  std::array<float, kMaxHeadDim> values;
  for (size_t b = 0; b < static_cast<size_t>(view.num_seqs()); ++b) {
    for (int head = 0; head < view.num_kv_heads; ++head) {
      std::byte* row_to = to.at(static_cast<int64_t>(b), head);
      for (int64_t row = first; row < first + to.dim(2);) {
        const std::byte* tile = tile_of<Side>(view, b, row, head);
        const int slot = static_cast<int>(row % kTileTokens);
        if (as_is && slot == 0) {
          const auto count =
              static_cast<int>(std::min<int64_t>(kTileTokens, first + to.dim(2) - row));
          Side::unpack(code, tile, count, head_dim, row_to, head_dim * size);
          row_to += count * head_dim * size;
          row += count;
          continue;
        }
        Side::decode(code, tile, slot, values.data(), head_dim);
        for (int d = 0; d < head_dim; ++d, row_to += size) {
          const float x = values[static_cast<size_t>(d)];
          store_float(to.dtype, row_to, is_packed(code) ? std::clamp(x, -largest, largest) : x);
        }
        ++row;
      }
    }
  }
}

// One row of a tile as the bytes of stored_row_bytes, and back.
template <class Side>
void take_row(KvCode code, const std::byte* tile, int slot, std::span<std::byte> row,
              int head_dim) {
  if (is_packed(code)) return Side::export_row(code, tile, slot, row, head_dim);
  // Whole tiles only, so that the elements' bits are kept: NaN payloads do not survive a float.
  std::array<std::byte, static_cast<size_t>(kTileTokens) * kMaxHeadDim * 4> rows;
  const int64_t bytes = head_dim * kv_code_bytes(code);
  Side::unpack(code, tile, slot + 1, head_dim, rows.data(), bytes);
  std::memcpy(row.data(), rows.data() + slot * bytes, static_cast<size_t>(bytes));
}

// Memory of one tile, zeros at first. Requires: at most the largest tile.
class AlignedTile {
 public:
  explicit AlignedTile(int64_t bytes) {
    KVIK_CHECK(0 <= bytes && bytes <= static_cast<int64_t>(sizeof bytes_), "no tile is so large");
    std::fill_n(bytes_, bytes, std::byte{0});
  }
  std::byte* data() { return bytes_; }

 private:
  alignas(kLineBytes) std::byte bytes_[static_cast<size_t>(kTileTokens) * kMaxHeadDim * 4];
};

template <class Side>
void read_rows(const KvView& view, int64_t num_rows, std::span<std::byte> to) {
  const KvCode code = Side::code(view.format);
  const int head_dim = Side::head_dim(view);
  const auto bytes = static_cast<size_t>(stored_row_bytes(code, head_dim));
  if (bytes == 0) return;
  for (size_t b = 0; b < static_cast<size_t>(view.num_seqs()); ++b) {
    for (int head = 0; head < view.num_kv_heads; ++head) {
      for (int64_t row = 0; row < num_rows; ++row) {
        take_row<Side>(code, tile_of<Side>(view, b, row, head), static_cast<int>(row % kTileTokens),
                       to.first(bytes), head_dim);
        to = to.subspan(bytes);
      }
    }
  }
}

template <class Side>
void read_tiles(const KvView& view, int64_t num_rows, std::span<std::byte> to) {
  const KvCode code = Side::code(view.format);
  const int head_dim = Side::head_dim(view);
  const auto bytes = static_cast<size_t>(Side::tile_bytes(code, head_dim));
  if (bytes == 0) return;
  std::vector<std::byte> row(static_cast<size_t>(stored_row_bytes(code, head_dim)));
  for (size_t b = 0; b < static_cast<size_t>(view.num_seqs()); ++b) {
    for (int64_t first = 0; first < num_rows; first += kTileTokens) {
      for (int head = 0; head < view.num_kv_heads; ++head, to = to.subspan(bytes)) {
        const std::byte* tile = tile_of<Side>(view, b, first, head);
        if (num_rows - first >= kTileTokens) {
          std::memcpy(to.data(), tile, bytes);
          continue;
        }
        // What lies behind the last row belongs to nobody and does not leave the cache.
        AlignedTile clean(static_cast<int64_t>(bytes));
        for (int slot = 0; slot < num_rows - first; ++slot) {
          take_row<Side>(code, tile, slot, row, head_dim);
          internal::put_row<Side>(code, clean.data(), slot, row, head_dim);
        }
        std::copy_n(clean.data(), static_cast<int64_t>(bytes), to.data());
      }
    }
  }
}

// The rows of one side in the order of write_codes. Requires: `to` holds them all.
template <class Side>
void to_tokens(const KvCodes& codes, const std::byte* from, int head_dim, std::byte* to) {
  const KvCode code = Side::code(codes.format);
  const int64_t heads = codes.shape.num_kv_heads;
  const int64_t rows = codes.num_rows;
  const int64_t num_tiles = ceil_div(rows, kTileTokens);
  const int64_t row_bytes = stored_row_bytes(code, head_dim);
  const int64_t tile_bytes = Side::tile_bytes(code, head_dim);
  if (row_bytes <= 0) return;
  AlignedTile tile(tile_bytes);
  for (int64_t b = 0; b < codes.shape.batch; ++b) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t row = 0; row < rows; ++row) {
        std::byte* const place = to + ((b * rows + row) * heads + head) * row_bytes;
        if (codes.layout == KvCodeLayout::rows) {
          std::copy_n(from + ((b * heads + head) * rows + row) * row_bytes, row_bytes, place);
          continue;
        }
        if (row % kTileTokens == 0) {
          const int64_t at = (b * num_tiles + row / kTileTokens) * heads + head;
          std::copy_n(from + at * tile_bytes, tile_bytes, tile.data());
        }
        take_row<Side>(code, tile.data(), static_cast<int>(row % kTileTokens),
                       {place, static_cast<size_t>(row_bytes)}, head_dim);
      }
    }
  }
}

}  // namespace

std::string_view kv_code_layout_name(KvCodeLayout layout) {
  return layout == KvCodeLayout::rows ? "rows" : "tiles";
}

Result<KvCodeLayout> parse_kv_code_layout(std::string_view name) {
  return internal::parse_name<KvCodeLayout>("layout of codes", name, '_', kLayouts);
}

Result<KvCodesBytes> kv_codes_bytes(KvFormat format, const KvArrayShape& shape, int64_t num_rows,
                                    KvCodeLayout layout) {
  if (shape.batch < 1 || shape.num_kv_heads < 1 || num_rows < 0 || num_rows > INT32_MAX ||
      shape.head_dim_k < 0 || shape.head_dim_k > kMaxHeadDim || shape.head_dim_v < 0 ||
      shape.head_dim_v > kMaxHeadDim) {
    return invalid_argument(
        "codes need a batch row, a head, at most 2^31 rows and head dims of 0 to " +
        std::to_string(kMaxHeadDim));
  }
  const int dim_k = static_cast<int>(shape.head_dim_k);
  const int dim_v = static_cast<int>(shape.head_dim_v);
  if (Status status = check_keys(format.k, dim_k); !status.ok()) return status;
  if (Status status = check_values(format.v, dim_v); !status.ok()) return status;
  const bool tiles = layout == KvCodeLayout::tiles;
  const int64_t count = tiles ? ceil_div(num_rows, kTileTokens) : num_rows;
  const auto keys =
      checked_product({shape.batch, shape.num_kv_heads, count,
                       tiles ? tile_bytes_k(format.k, dim_k) : stored_row_bytes(format.k, dim_k)});
  const auto values =
      checked_product({shape.batch, shape.num_kv_heads, count,
                       tiles ? tile_bytes_v(format.v, dim_v) : stored_row_bytes(format.v, dim_v)});
  if (!keys || !values || !checked_sum({*keys, *values})) {
    return invalid_argument("the codes exceed 2^63 bytes");
  }
  return KvCodesBytes{*keys, *values};
}

namespace internal {

void decode_rows(const KvView& view, int64_t first, const TensorView& keys,
                 const TensorView& values) {
  decode_side<KeySide>(view, first, keys);
  decode_side<ValueSide>(view, first, values);
}

void read_codes(const KvView& view, KvCodeLayout layout, int64_t num_rows,
                std::span<std::byte> keys, std::span<std::byte> values) {
  if (layout == KvCodeLayout::tiles) {
    read_tiles<KeySide>(view, num_rows, keys);
    read_tiles<ValueSide>(view, num_rows, values);
  } else {
    read_rows<KeySide>(view, num_rows, keys);
    read_rows<ValueSide>(view, num_rows, values);
  }
}

Result<TokenCodes> token_codes(const KvCodes& codes) {
  TokenCodes tokens;
  const int dim_k = static_cast<int>(codes.shape.head_dim_k);
  const int dim_v = static_cast<int>(codes.shape.head_dim_v);
  const int64_t rows = codes.shape.batch * codes.shape.num_kv_heads * codes.num_rows;
  const int64_t k_bytes = rows * stored_row_bytes(codes.format.k, dim_k);
  const int64_t v_bytes = rows * stored_row_bytes(codes.format.v, dim_v);
  tokens.memory.reset(new (std::nothrow) std::byte[static_cast<size_t>(k_bytes + v_bytes)]);
  if (tokens.memory == nullptr) {
    return Status(StatusCode::out_of_memory,
                  "no memory for " + std::to_string(k_bytes + v_bytes) + " bytes of codes");
  }
  tokens.k = {tokens.memory.get(), static_cast<size_t>(k_bytes)};
  tokens.v = {tokens.memory.get() + k_bytes, static_cast<size_t>(v_bytes)};
  to_tokens<KeySide>(codes, codes.keys.data(), dim_k, tokens.memory.get());
  to_tokens<ValueSide>(codes, codes.values.data(), dim_v, tokens.memory.get() + k_bytes);
  return tokens;
}

}  // namespace internal
}  // namespace kvik
