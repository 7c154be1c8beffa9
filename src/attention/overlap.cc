#include "attention/overlap.h"

#include "kvik/format/tile.h"

namespace kvik::internal {
namespace {

bool is_empty(const RowGrid& grid) {
  return grid.count[0] == 0 || grid.count[1] == 0 || grid.row_bytes == 0;
}

// Bytes from the first to behind the last, of the rows seen modulo `period` (0: as they lie).
int64_t extent(const RowGrid& grid, int64_t period) {
  int64_t bytes = grid.row_bytes;
  for (size_t d = 0; d < 2; ++d) {
    if (grid.count[d] < 2 || (period > 0 && grid.step[d] % period == 0)) continue;
    bytes += (grid.count[d] - 1) * grid.step[d];
  }
  return bytes;
}

// Seen modulo the period, both are one interval of a circle; apart there is apart in memory.
bool are_apart_modulo(const RowGrid& a, const RowGrid& b, int64_t period) {
  const int64_t a_bytes = extent(a, period);
  const int64_t b_bytes = extent(b, period);
  if (a_bytes > period || b_bytes > period) return false;
  const auto distance = static_cast<int64_t>(reinterpret_cast<uintptr_t>(b.begin) -
                                             reinterpret_cast<uintptr_t>(a.begin)) %
                        period;
  const int64_t offset = distance < 0 ? distance + period : distance;
  return offset >= a_bytes && offset + b_bytes <= period;
}

RowGrid grid_of_side(const KvView& view, const std::byte* data, std::array<int64_t, 2> stride,
                     int64_t tile_bytes, int64_t plain_row_bytes) {
  const bool tiles = view.layout == KvLayout::tiles;
  return {data,
          {view.num_pages, view.num_kv_heads},
          stride,
          tiles ? view.block_size / kTileTokens * tile_bytes : plain_row_bytes};
}

int64_t plain_row_bytes(KvCode code, int head_dim) {
  return is_packed(code) ? 0 : head_dim * kv_code_bytes(code);
}

}  // namespace

RowGrid grid_of(const ConstTensorView& tensor) {
  const int64_t bytes = dtype_bytes(tensor.dtype);
  const int64_t row = tensor.rank == 3 ? tensor.dim(2) : 1;
  // The step of a dimension with one element may be anything.
  const auto step = [&](int d) { return tensor.dim(d) < 2 ? 0 : tensor.step(d) * bytes; };
  return {tensor.data, {tensor.dim(0), tensor.dim(1)}, {step(0), step(1)}, row * bytes};
}

RowGrid grid_of_k(const KvView& view) {
  return grid_of_side(view, view.k, view.k_stride, tile_bytes_k(view.format.k, view.head_dim_k),
                      plain_row_bytes(view.format.k, view.head_dim_k));
}

RowGrid grid_of_v(const KvView& view) {
  return grid_of_side(view, view.v, view.v_stride, tile_bytes_v(view.format.v, view.head_dim_v),
                      plain_row_bytes(view.format.v, view.head_dim_v));
}

bool may_overlap(const RowGrid& a, const RowGrid& b) {
  if (is_empty(a) || is_empty(b)) return false;
  const auto a_begin = reinterpret_cast<uintptr_t>(a.begin);
  const auto b_begin = reinterpret_cast<uintptr_t>(b.begin);
  if (a_begin + static_cast<uintptr_t>(extent(a, 0)) <= b_begin ||
      b_begin + static_cast<uintptr_t>(extent(b, 0)) <= a_begin) {
    return false;
  }
  for (const RowGrid* const grid : {&a, &b}) {
    for (size_t d = 0; d < 2; ++d) {
      if (grid->count[d] < 2 || grid->step[d] == 0) continue;
      if (are_apart_modulo(a, b, grid->step[d])) return false;
    }
  }
  return true;
}

}  // namespace kvik::internal
