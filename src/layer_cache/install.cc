#include "kvik/layer_cache/install.h"

#include <utility>

#include "layer_cache/json.h"
#include "layer_cache/paged_state.h"

namespace kvik {
namespace {

// What becomes of one entry: the cache in its place, nothing if it is skipped.
using Replacement = Result<std::optional<LayerCache>>;

Replacement skip() { return std::optional<LayerCache>(); }

template <class Cache>
Replacement replace_by(Result<Cache> cache) {
  if (!cache.ok()) return cache.status();
  return std::optional<LayerCache>(std::move(cache).value());
}

bool can_replace(const ForeignCache& entry) {
  return entry.is_trimmable && !entry.has_index && entry.has_keys_and_values;
}

// Replaces all entries or none.
template <class Replace>
Status replace_entries(std::vector<LayerCache>& entries, InstallReport& report, Replace replace) {
  std::vector<std::optional<LayerCache>> fresh;
  for (LayerCache& entry : entries) {
    Replacement cache = std::visit(replace, entry);
    if (!cache.ok()) {
      return {cache.status().code(),
              "cache entry " + std::to_string(fresh.size()) + ": " + cache.status().message()};
    }
    fresh.push_back(std::move(cache).value());
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!fresh[i]) {
      ++report.skipped;
      continue;
    }
    ++report.entries;
    entries[i] = std::move(*fresh[i]);
  }
  report.enabled = report.entries > 0;
  return {};
}

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

template <class Cache>
Result<Cache> load_foreign(Result<Cache> cache, const ForeignCache& entry) {
  if (!cache.ok() || !entry.rows || entry.offset == 0) return cache;
  if (entry.offset < 0 || entry.rows->keys.rank != 4 || entry.offset > entry.rows->num_rows()) {
    return invalid_argument("offset " + std::to_string(entry.offset) + " does not fit the rows");
  }
  const KvArrays valid{rows_of(entry.rows->keys, 0, entry.offset),
                       rows_of(entry.rows->values, 0, entry.offset), entry.rows->owner};
  if (Status status = cache->set_state(valid); !status.ok()) return status;
  return cache;
}

}  // namespace

std::string to_json(const InstallReport& report) {
  internal::JsonObject json;
  json.add("enabled", report.enabled)
      .add("mode", report.mode)
      .add("entries", report.entries)
      .add("skipped", report.skipped);
  if (report.step) json.add("step", report.step);
  if (report.block_size) json.add("block_size", report.block_size);
  if (report.num_blocks) json.add("num_blocks", report.num_blocks);
  if (report.turboquant) json.add("turboquant", report.turboquant);
  if (report.kv_quant) json.add("kv_quant", report.kv_quant);
  if (report.turboquant_k_quant) json.add("turboquant_k_quant", report.turboquant_k_quant);
  if (report.turboquant_v_quant) json.add("turboquant_v_quant", report.turboquant_v_quant);
  if (report.kv_quant_mode) json.add("kv_quant_mode", report.kv_quant_mode);
  if (report.format) json.add("format", report.format);
  if (report.attention_impl) json.add("attention_impl", report.attention_impl);
  if (report.external_ops_required) {
    json.add("external_ops_required", report.external_ops_required);
  }
  return json.text();
}

Result<InstallReport> install_tail_owned_attention_kv_cache(std::vector<LayerCache>& entries,
                                                            DetachMode mode,
                                                            std::optional<int64_t> step) {
  InstallReport report;
  report.mode = detach_mode_name(mode);
  report.step = step;
  const auto replace =
      Overloaded{[](std::monostate) { return skip(); },
                 [&](const ForeignCache& entry) {
                   if (!can_replace(entry)) return skip();
                   TailOwnedOptions options;
                   options.mode = mode;
                   options.step = step.value_or(entry.step.value_or(options.step));
                   return replace_by(load_foreign(TailOwnedKVCache::create(options), entry));
                 },
                 [&](const TailOwnedKVCache& entry) -> Replacement {
                   TailOwnedKVCache cache = entry.fork();
                   std::vector<std::string> meta = entry.meta_state();
                   if (step) meta[0] = std::to_string(*step);
                   meta[2] = detach_mode_name(mode);
                   if (Status status = cache.set_meta_state(meta); !status.ok()) return status;
                   return std::optional<LayerCache>(std::move(cache));
                 },
                 [&](const BlockOwnedKVCache& entry) {
                   return replace_by(TailOwnedKVCache::from_cache(entry, mode, step));
                 },
                 [&](PagedKVCache& entry) {
                   return replace_by(TailOwnedKVCache::from_cache(entry, mode, step));
                 }};
  if (Status status = replace_entries(entries, report, replace); !status.ok()) return status;
  return report;
}

Result<InstallReport> install_block_owned_attention_kv_cache(std::vector<LayerCache>& entries,
                                                             DetachMode mode, int64_t block_size) {
  InstallReport report;
  report.mode = detach_mode_name(mode);
  report.block_size = block_size;
  const auto replace = Overloaded{
      [](std::monostate) { return skip(); },
      [&](const ForeignCache& entry) {
        if (!can_replace(entry)) return skip();
        return replace_by(load_foreign(BlockOwnedKVCache::create({block_size, mode}), entry));
      },
      [](const TailOwnedKVCache&) { return skip(); },
      [&](const BlockOwnedKVCache& entry) -> Replacement {
        if (block_size != entry.block_size()) {
          return replace_by(BlockOwnedKVCache::from_cache(entry, mode, block_size));
        }
        BlockOwnedKVCache cache = entry.fork();
        std::vector<std::string> meta = entry.meta_state();
        meta[2] = detach_mode_name(mode);
        if (Status status = cache.set_meta_state(meta); !status.ok()) return status;
        return std::optional<LayerCache>(std::move(cache));
      },
      [&](PagedKVCache& entry) {
        return replace_by(BlockOwnedKVCache::from_cache(entry, mode, block_size));
      }};
  if (Status status = replace_entries(entries, report, replace); !status.ok()) return status;
  return report;
}

namespace {

void add_storage(const PagedKVCacheOptions& options, InstallReport& report) {
  const bool kv_quant = options.kv_quant && options.kv_quant->mode && !options.turboquant;
  report.turboquant = options.turboquant.has_value();
  report.kv_quant = kv_quant;
  if (options.turboquant) {
    report.mode += "_turboquant";
    report.turboquant_k_quant = internal::turboquant_name(options.turboquant->k_quant);
    report.turboquant_v_quant = internal::turboquant_name(options.turboquant->v_quant);
  }
  if (kv_quant) {
    report.kv_quant_mode = kv_code_name(*options.kv_quant->mode);
    report.mode += "_kv_" + *report.kv_quant_mode;
  }
  if (options.format) report.format = internal::format_text(*options.format);
  const bool low_bit = report.turboquant.value() || kv_quant || options.format;
  report.attention_impl = options.route == PagedRoute::gather
                              ? std::string(paged_route_name(options.route, low_bit))
                              : "vllm_metal";
}

}  // namespace

Result<InstallReport> install_vllm_metal_paged_attention_kv_cache(
    std::vector<LayerCache>& entries, const PagedKVCacheOptions& options,
    const std::shared_ptr<Backend>& backend) {
  // Options that no entry could take are an error for an empty list too.
  if (Result<PagedKVCache> probe = PagedKVCache::create(options, backend); !probe.ok()) {
    return probe.status();
  }
  InstallReport report;
  report.mode = "vllm_metal_paged";
  report.block_size = options.block_size;
  report.num_blocks = options.num_blocks;
  add_storage(options, report);
  report.external_ops_required = false;
  const auto replace =
      Overloaded{[](std::monostate) { return skip(); },
                 [&](const ForeignCache& entry) {
                   if (!can_replace(entry)) return skip();
                   return replace_by(load_foreign(PagedKVCache::create(options, backend), entry));
                 },
                 [](const TailOwnedKVCache&) { return skip(); },
                 [](const BlockOwnedKVCache&) { return skip(); },
                 [&](const PagedKVCache& entry) -> Replacement {
                   PagedKVCache cache = entry.fork();
                   if (Status status = cache.reconfigure(options); !status.ok()) return status;
                   return std::optional<LayerCache>(std::move(cache));
                 }};
  if (Status status = replace_entries(entries, report, replace); !status.ok()) return status;
  return report;
}

std::optional<TailOwnerStats> tail_owned_attention_kv_stats(
    const std::vector<LayerCache>& entries) {
  std::optional<TailOwnerStats> sum;
  const auto add = [&](const TailOwnerStats& stats) {
    if (!sum) sum = TailOwnerStats{stats.mode};
    sum->updates += stats.updates;
    sum->arrays += stats.arrays;
    sum->bytes += stats.bytes;
    sum->time_s += stats.time_s;
    sum->copies += stats.copies;
    sum->nbytes += stats.nbytes;
    sum->resident_bytes += stats.resident_bytes;
  };
  for (const LayerCache& entry : entries) {
    std::visit(Overloaded{[](std::monostate) {}, [](const ForeignCache&) {},
                          [&](const TailOwnedKVCache& cache) { add(cache.tail_owner_stats()); },
                          [&](const BlockOwnedKVCache& cache) { add(cache.tail_owner_stats()); },
                          [&](const PagedKVCache& cache) {
                            const PagedStats stats = cache.paged_stats();
                            add({stats.mode, stats.updates, stats.paged_attention_calls,
                                 stats.bytes, stats.cache_write_time_s + stats.attention_time_s,
                                 stats.copies, stats.bytes, stats.resident_bytes});
                          }},
               entry);
  }
  return sum;
}

}  // namespace kvik
