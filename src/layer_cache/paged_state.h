// Private parts of a paged one-layer cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "kvik/layer_cache/paged_kv_cache.h"
#include "layer_cache/dequant_mirror.h"
#include "layer_cache/page_rows.h"
#include "layer_cache/pending_halves.h"

namespace kvik::internal {

// "tq8:tcq4".
std::string format_text(KvFormat format);
// TurboQuant's own name of one of its codes: "q8_0" of tqk_q8_0. Requires: tqk_* or tqv_*.
std::string turboquant_name(KvCode code);

struct PagedState {
  PagedKVCacheOptions options;
  std::shared_ptr<Backend> backend;
  int64_t num_blocks = 0;
  int64_t planned_offset = 0;      // of a meta state whose rows are still to come
  std::unique_ptr<PageRows> rows;  // null before the first write
  PendingHalves halves;
  std::optional<PagedRoute> route;  // latched by a request's first attention call
  int64_t route_offset = 0;
  std::optional<PagedBailout> bailout;
  std::set<std::string> told;  // reasons that on_fallback has heard
  // Of a low-bit cache that attends by it; never more rows than `rows`.
  std::unique_ptr<DequantMirror> mirror;
  int64_t copies = 0;
  PagedStats counters;  // of what is counted; sizes are filled in on demand

  int64_t offset() const { return rows ? rows->num_rows() : planned_offset; }
  bool has_rows() const { return rows && rows->num_rows() > 0; }

  // Whether rows are stored in another form than they come in; the routes then round differently.
  bool is_low_bit() const { return low_bit_format(options).has_value(); }
  // How rows of this shape are stored.
  KvFormat format_for(const KvArrayShape& shape) const;

  // Tokens that a page holds: the smallest multiple of the block size that tiles divide.
  int64_t page_tokens() const;
  // Tokens of a batch row for which address space is reserved.
  int64_t limit_tokens() const;
  // Blocks that a batch row of num_tokens tokens needs, after growth if that is allowed. Errors:
  // out_of_pages.
  Result<int64_t> blocks_for(int64_t num_tokens) const;
  // Puts all rows into a pool of their own with room for `limit` tokens.
  Status move_to_own_pool(int64_t limit);
  // The same, encoded anew where the options now ask for another format. Nothing changed if a row
  // is refused.
  Status move_to_format(int64_t limit);
  Status append(const ConstTensorView& keys, const ConstTensorView& values);
  // PagedKVCache::prepare.
  Status prepare(const KvArrayShape& shape, int64_t pending, int64_t num_rows);
  Status load(const ConstTensorView& keys, const ConstTensorView& values, int64_t num_rows);
  Status load_codes(const KvCodes& codes);
  // Keeps the first num_rows rows. Requires: there are as many.
  void truncate(int64_t num_rows);
  void clear();
  Result<KvArrays> gather();
  // All rows in the mirror's dtype, the new ones decoded now. Requires: low bit, has_rows().
  Result<KvArrays> mirrored();
  void tell(const std::string& reason, const std::string& what);

  static std::optional<KvFormat> low_bit_format(const PagedKVCacheOptions& options);
  static std::optional<DType> mirror_dtype(const PagedKVCacheOptions& options);

 private:
  // Whether rows of this shape can follow `pending` ones that are still to come; blocks that they
  // all need.
  Result<int64_t> check_append(const KvArrayShape& shape, int64_t pending, int64_t num_rows) const;
  // Makes or moves the pages so that they have room for so many blocks.
  Status make_room(const KvArrayShape& shape, int64_t blocks);
  // Room for so many blocks, then `use` of the pages; where it fails, first pages are gone again.
  Status use_room(const KvArrayShape& shape, int64_t blocks, const std::function<Status()>& use);
  // Empty pages for rows of this shape, with room for `blocks` blocks and the options' limit.
  Result<std::unique_ptr<PageRows>> make_rows(const KvArrayShape& shape, int64_t limit) const;
  // Puts num_rows rows that `fill` appends in the place of all rows.
  Status replace(const KvArrayShape& shape, int64_t num_rows,
                 const std::function<Status(PageRows&)>& fill);
};

}  // namespace kvik::internal
