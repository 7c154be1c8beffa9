// Putting the one-layer caches in the place of a model's caches, one entry per layer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kvik/backend/backend.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/layer_cache/block_owned_kv_cache.h"
#include "kvik/layer_cache/paged_kv_cache.h"
#include "kvik/layer_cache/tail_owned_kv_cache.h"

namespace kvik {

// A cache of another library, as far as installing needs to know it.
struct ForeignCache {
  bool is_trimmable = true;
  bool has_index = false;           // a rotating or indexed cache: rows are not in order
  bool has_keys_and_values = true;  // members for keys and values, set or not
  std::optional<KvArrays> rows;     // borrowed or owned; none: still empty
  int64_t offset = 0;               // valid rows of `rows`
  std::optional<int64_t> step;
};

// No entry for a layer: std::monostate.
using LayerCache =
    std::variant<std::monostate, ForeignCache, TailOwnedKVCache, BlockOwnedKVCache, PagedKVCache>;

// What an installer did. Members that do not apply to it are unset.
struct InstallReport {
  bool enabled = false;  // whether any entry is now of the wanted kind
  // The detach mode; for paged "vllm_metal_paged", with "_turboquant" or "_kv_q8" (q6, q4) behind
  // it where rows are stored so.
  std::string mode;
  int64_t entries = 0;  // of the wanted kind, those of that kind before included
  int64_t skipped = 0;
  std::optional<int64_t> step;
  std::optional<int64_t> block_size;
  std::optional<int64_t> num_blocks;
  std::optional<bool> turboquant;
  std::optional<bool> kv_quant;
  std::optional<std::string> turboquant_k_quant;  // TurboQuant's names, such as "q8_0"
  std::optional<std::string> turboquant_v_quant;
  std::optional<std::string> kv_quant_mode;
  std::optional<std::string> format;  // "tq8:tcq4", where that option was given
  std::optional<std::string> attention_impl;
  std::optional<bool> external_ops_required;  // never: the kernels are Kvik's own
};

// One object with the members that apply as keys.
KVIK_API std::string to_json(const InstallReport& report);

// Each replaces entries in place, all or none, copying the rows that they hold. Skipped: no entry;
// a foreign one that is not trimmable, is indexed, or has no keys and values. An entry of the
// wanted kind stays and takes the new settings. Errors, no entry changed: as create, from_cache and
// reconfigure of the wanted kind.

// mode and step (none: an entry's own, or 256). Paged entries become tail-owned.
KVIK_API Result<InstallReport> install_tail_owned_attention_kv_cache(
    std::vector<LayerCache>& entries, DetachMode mode = DetachMode::contiguous_eval,
    std::optional<int64_t> step = std::nullopt);
// Tail-owned entries are skipped too. A block-owned entry of another block size is counted anew in
// blocks of the wanted size; nothing is copied.
KVIK_API Result<InstallReport> install_block_owned_attention_kv_cache(
    std::vector<LayerCache>& entries, DetachMode mode = DetachMode::contiguous_eval,
    int64_t block_size = 1024);
// Tail- and block-owned entries are skipped too.
KVIK_API Result<InstallReport> install_vllm_metal_paged_attention_kv_cache(
    std::vector<LayerCache>& entries, const PagedKVCacheOptions& options,
    const std::shared_ptr<Backend>& backend);

// Sums over the entries that are Kvik's; none of them: nothing. For a paged entry arrays counts
// attention calls and time_s writing and attention.
KVIK_API std::optional<TailOwnerStats> tail_owned_attention_kv_stats(
    const std::vector<LayerCache>& entries);

}  // namespace kvik
