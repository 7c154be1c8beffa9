// The paged cache of one layer: a batch of sequences of equal length in pages, with attention.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvik/backend/backend.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/layer_cache/causal_mask.h"
#include "kvik/layer_cache/kv_arrays.h"
#include "kvik/layer_cache/kv_codes.h"
#include "kvik/layer_cache/paged_options.h"
#include "kvik/layer_cache/paged_stats.h"

namespace kvik {

namespace internal {
struct PagedState;
}
class BlockOwnedKVCache;
class TailOwnedKVCache;

// causal: query j of q_len sees the keys up to position offset - q_len + j. full: all keys.
// array: as `array` says, [.., q_len, offset]; additive elements that are neither 0 nor minus
// infinity (or the type's lowest value) are served by attend() only.
struct AttentionMask {
  enum class Kind : uint8_t { causal, full, array };
  Kind kind = Kind::causal;
  MaskView array = {};
};

// Attention of one layer over the cached rows, those of the queries included (update first).
struct PagedAttentionCall {
  ConstTensorView queries;  // [B, H, q_len, head_dim_k], last stride 1; H a multiple of H_kv
  TensorView out;           // [B, H, q_len, head_dim_v], last stride 1; written
  std::optional<float> scale = std::nullopt;  // none: 1 / sqrt(head_dim_k)
  AttentionMask mask = {};
  // A query at position p sees keys t > p - sliding_window only; with every kind of mask but full.
  std::optional<int64_t> sliding_window = std::nullopt;
  float softcap = 0.0f;               // 0: none
  std::span<const float> sinks = {};  // one logit per query head, or empty
  PagedPhase phase = PagedPhase::unknown;
  std::optional<PagedRoute> impl_override = std::nullopt;
  // Only the first kv_len rows, as if no more were there; none: all. Where an offset is spoken of,
  // it is this one.
  std::optional<int64_t> kv_len = std::nullopt;
};

// Logical copies of the pages: [batch * num_blocks, block_size, H_kv, head_dim]; block i of batch
// row b is entry b * num_blocks + i. Slots without a row are zero.
struct KvPages {
  ConstTensorView key_cache, value_cache;
  std::shared_ptr<const void> owner;
};

// A one-layer PagedCache and one sequence per batch row; batch, heads, head dims and dtypes are
// fixed by the first write, before which nothing is allocated. Position p lies in block p /
// block_size, slot p % block_size; block_table() gives the block's page.
//
// num_blocks blocks of every batch row are the capacity. Address space for it is reserved with the
// first write and no setter changes it afterwards; memory backs it as rows come. Any block size is
// a way of counting over pages of 16-token tiles: a page holds lcm(block_size, 16) tokens (sizes
// that divide 16 or are multiples of it waste nothing).
//
// Low-bit storage (turboquant, kv_quant or format of the options): each row is encoded when it is
// written and only its codes are kept. Attention reads the codes, or by the mirror route a decoded
// copy, which counts in nbytes(), follows every trim, is decoded once per row and is dropped when a
// request latches the other route. state(), keys, values and pages are decoded, to the nearest
// number of the dtype of the rows.
//
// Forks share pages; a fork that writes into a partly filled page that the other sees gets a copy
// of that page. Move-only. Threads: one at a time; different caches are independent; forks of one
// cache may be used on different threads and wait for each other.
class KVIK_API PagedKVCache {
 public:
  // Errors: invalid_argument naming the option.
  static Result<PagedKVCache> create(const PagedKVCacheOptions& options,
                                     std::shared_ptr<Backend> backend);
  // The same, with the first `offset` rows (none: all) copied in. Errors: also as update.
  static Result<PagedKVCache> create(const PagedKVCacheOptions& options,
                                     std::shared_ptr<Backend> backend, const ConstTensorView& keys,
                                     const ConstTensorView& values,
                                     std::optional<int64_t> offset = std::nullopt);
  // Takes a copy of the entry's rows; of a paged entry that stores them in the same low-bit format,
  // exactly. Errors: as create.
  static Result<PagedKVCache> from_cache(const TailOwnedKVCache& entry,
                                         const PagedKVCacheOptions& options,
                                         std::shared_ptr<Backend> backend);
  static Result<PagedKVCache> from_cache(const BlockOwnedKVCache& entry,
                                         const PagedKVCacheOptions& options,
                                         std::shared_ptr<Backend> backend);
  static Result<PagedKVCache> from_cache(PagedKVCache& entry, const PagedKVCacheOptions& options,
                                         std::shared_ptr<Backend> backend);

  PagedKVCache(PagedKVCache&&) noexcept;
  PagedKVCache& operator=(PagedKVCache&&) noexcept;
  ~PagedKVCache();
  PagedKVCache fork() const;

  // Appends the rows to the pages. No rows: changes nothing. Errors, nothing changed:
  // invalid_argument for shapes or dtypes that differ from the first write, for head dims that the
  // low-bit format does not store, and for rows that it refuses (not finite); out_of_pages, naming
  // need and limit, when the capacity is full and may not grow; out_of_memory.
  Status update_without_fetch(const ConstTensorView& keys, const ConstTensorView& values,
                              PagedPhase phase = PagedPhase::unknown);
  // The same, and returns a copy of all rows: O(context).
  Result<KvArrays> update_and_fetch(const ConstTensorView& keys, const ConstTensorView& values,
                                    PagedPhase phase = PagedPhase::unknown);

  // Takes room for num_rows rows of this shape that are to come at `position`, which is the offset
  // or lies behind it, at the end of other rows to come: appending them all, in any portions, then
  // meets no error of shape, capacity or pages. Fixes the shape as a write does. The pages are held
  // until rows take them, or rows are cut, replaced or moved; a fork in between may cost one of
  // them. Errors, nothing changed: as update_without_fetch, except for rows that a low-bit format
  // refuses.
  Status prepare(const KvArrayShape& shape, int64_t position, int64_t num_rows);
  // Whether paged_attention would serve the call once `call.kv_len` rows are there; nothing is read
  // or counted, and no data needed. Errors: as paged_attention.
  Result<bool> would_serve(const PagedAttentionCall& call) const;

  // Attention over the pages. True: `out` is written. False: declined, counted by phase and reason
  // (last_bailout()), nothing written: empty_cache, q_len_invalid, q_len_gt_max, unsupported_mask.
  // The request's first call latches its route, until a prompt is written or the rows are replaced;
  // a later call that asks for another route is counted as "route_latched" and reported to
  // on_fallback. It is served by the route it asks for, whose bits are the same; in a low-bit
  // cache, where they are not, by the latched one. Errors: invalid_argument for shapes that do not
  // fit.
  Result<bool> paged_attention(const PagedAttentionCall& call);
  // Paged attention, or where it declines the dense fallback, counted by phase and reported to
  // on_fallback once for each reason: for q_len_gt_max over gathered rows, in a low-bit cache by
  // the request's route, with the same bits; for unsupported_mask in plain loops over gathered
  // rows, in double precision and slow. Errors: unsupported naming the reason where there is no
  // fallback or it is forbidden.
  Status attend(const PagedAttentionCall& call);
  const std::optional<PagedBailout>& last_bailout() const;

  int64_t block_size() const;
  int64_t num_blocks() const;  // of each batch row
  int64_t capacity() const { return num_blocks() * block_size(); }
  int64_t offset() const;
  int64_t size() const { return offset(); }
  // Whether no page holds a row.
  bool empty() const;
  // Rows' share of the backed pages (of the whole pool where forks share it) and of the mirror;
  // memory the system holds.
  int64_t nbytes() const;
  int64_t resident_bytes() const;
  std::optional<KvArrayShape> shape() const;  // none before the first write
  const PagedKVCacheOptions& options() const;
  // Whether the options ask for low-bit storage; how rows of this shape are stored.
  bool is_low_bit() const;
  KvFormat format_of(const KvArrayShape& shape) const;
  // Page of each block of a batch row, the identity unless pages are shared or there are several
  // rows. Requires: 0 <= batch_row < B.
  std::vector<int32_t> block_table(int64_t batch_row) const;

  bool is_trimmable() const { return true; }
  // Drops min(n, offset) newest rows and returns that number; 0 for a negative n.
  int64_t trim(int64_t n);

  // A copy of the valid rows, decoded where they are stored in a low-bit format; nothing while
  // empty. Errors: unsupported where active arrays are
  // forbidden; out_of_memory.
  Result<std::optional<KvArrays>> state();
  // Replaces all rows by a copy of these; none: empties the cache. Errors, nothing changed: as
  // update of a fresh cache.
  Status set_state(const std::optional<KvArrays>& state);

  // (block_size, num_blocks, offset).
  std::vector<std::string> meta_state() const;
  // Without rows: the plan of a state to come; until it is set, writing is an error. With rows: the
  // pages keep their geometry, only the offset is taken, downwards. Empty: ignored. Errors, nothing
  // changed: invalid_argument for other counts or texts, an offset below zero, beyond the capacity
  // ("exceeds page capacity") or beyond the rows.
  Status set_meta_state(std::span<const std::string> meta);

  // As TailOwnedKVCache: at once if the half fits the rows, else when the other half comes.
  Status set_keys(const std::optional<ConstTensorView>& keys);
  Status set_values(const std::optional<ConstTensorView>& values);

  // The pages as arrays; nothing before the first write. Errors: out_of_memory.
  Result<std::optional<KvPages>> export_pages() const;
  // Replaces all rows by the first `offset` tokens of pages [num_pages, block_size, H_kv, D] with
  // this cache's block size. block_table: the pages of batch row 0, then of row 1, ..., ceil(offset
  // / block_size) each; the length gives the batch. Errors, nothing changed: invalid_argument for
  // shapes or ids that do not fit; as set_state.
  Status import_pages(const ConstTensorView& key_cache, const ConstTensorView& value_cache,
                      std::span<const int32_t> block_table, int64_t offset);

  // All rows as they are stored, without rounding; nothing before the first write. Errors:
  // out_of_memory.
  Result<std::optional<KvCodes>> export_codes(KvCodeLayout layout = KvCodeLayout::rows) const;
  // Replaces all rows by these, exactly. Errors, nothing changed: invalid_argument for a format
  // that is not this cache's, for sizes that do not fit, and for packed rows that stand for values
  // which are not finite; as set_state.
  Status import_codes(const KvCodes& codes);

  // Takes new options: without rows all of them, with rows all but the block size. Rows that
  // another storage format is asked for are decoded and encoded anew, counted in `copies`. Room for
  // more blocks is taken from growth, which must be allowed. Errors, nothing changed: as create and
  // update; out_of_pages for more room than the live pages may take.
  Status reconfigure(const PagedKVCacheOptions& options);

  // make_causal_mask at this offset; make_mask_array.
  Result<CausalMask> make_mask(int64_t num_queries, bool return_array = false,
                               std::optional<int64_t> window = std::nullopt) const;
  Result<CausalMask> make_mask(int64_t query_len, int64_t key_len, MaskType type) const;

  PagedStats paged_stats() const;

 private:
  explicit PagedKVCache(std::unique_ptr<internal::PagedState> state);
  std::unique_ptr<internal::PagedState> state_;
};

}  // namespace kvik
