// Rows that are encoded already.
#include <string>

#include "cache/plan_state.h"
#include "format/kv_sides.h"
#include "kvik/cache/paged_cache.h"
#include "kvik/core/check.h"
#include "kvik/format/packed_code.h"
#include "kvik/format/row_codec.h"
#include "kvik/format/tile.h"

namespace kvik {
namespace {

std::string num(int64_t x) { return std::to_string(x); }

Status check_side(const char* name, std::span<const std::byte> rows, KvCode code, int head_dim,
                  int64_t num_rows) {
  const int64_t bytes = stored_row_bytes(code, head_dim);
  if (static_cast<int64_t>(rows.size()) != bytes * num_rows) {
    return invalid_argument(std::string(name) + " has " + num(static_cast<int64_t>(rows.size())) +
                            " bytes; " + num(num_rows) + " rows of " +
                            std::string(kv_code_name(code)) + " and head_dim " + num(head_dim) +
                            " have " + num(bytes * num_rows));
  }
  if (!is_packed(code)) return {};
  const auto row_bytes = static_cast<size_t>(bytes);
  for (size_t first = 0; first < rows.size(); first += row_bytes) {
    if (!is_finite_row(code, rows.subspan(first, row_bytes), head_dim)) {
      return invalid_argument(std::string(name) + " row " +
                              num(static_cast<int64_t>(first / row_bytes)) +
                              " stands for values that are not finite");
    }
  }
  return {};
}

// One row of a layer into its slot.
template <class Side>
void put_slot(const MutableKvView& view, int64_t slot, int head, std::span<const std::byte> row) {
  const int64_t in_page = slot % view.block_size;
  std::byte* tile = Side::tile(view, slot / view.block_size, in_page / kTileTokens, head);
  internal::put_row<Side>(Side::code(view.format), tile, static_cast<int>(in_page % kTileTokens),
                          row, Side::head_dim(view));
}

}  // namespace

int64_t stored_row_bytes(KvCode code, int head_dim) {
  return is_packed(code) ? packed_row_bytes(code, head_dim) : head_dim * kv_code_bytes(code);
}

void PagedCache::write_codes(AppendPlan& plan, int layer, std::span<const std::byte> k,
                             std::span<const std::byte> v) {
  KVIK_CHECK(plan.core_ == core_ && plan.state_ != nullptr, "the plan is not of this cache");
  internal::PlanState& state = *plan.state_;
  const KvSpec& spec = core_->options.spec;
  Status error;
  if (layer < 0 || layer >= spec.num_layers()) {
    error = invalid_argument("the cache has " + num(spec.num_layers()) + " layers");
  } else {
    const KvFormat format = spec.layers[static_cast<size_t>(layer)];
    const int64_t num_rows = int64_t{plan.num_tokens()} * spec.num_kv_heads;
    error = check_side("k", k, format.k, spec.head_dim_k, num_rows);
    if (error.ok()) error = check_side("v", v, format.v, spec.head_dim_v, num_rows);
  }
  if (!error.ok()) {
    if (state.error.ok()) {
      state.error =
          Status(error.code(), "write_codes of layer " + num(layer) + ": " + error.message());
    }
    return;
  }
  const MutableKvView view = core_->layer_view(layer);
  const auto k_bytes = static_cast<size_t>(stored_row_bytes(view.format.k, view.head_dim_k));
  const auto v_bytes = static_cast<size_t>(stored_row_bytes(view.format.v, view.head_dim_v));
  size_t row = 0;
  for (const int64_t slot : state.slots) {
    for (int head = 0; head < view.num_kv_heads; ++head, ++row) {
      put_slot<internal::KeySide>(view, slot, head, k.subspan(row * k_bytes, k_bytes));
      put_slot<internal::ValueSide>(view, slot, head, v.subspan(row * v_bytes, v_bytes));
    }
  }
  state.rows->written[static_cast<size_t>(layer)] = true;
}

}  // namespace kvik
