// Putting caches in the place of those in a Python list.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>
#include <vector>

#include "cache_members.h"
#include "environment.h"
#include "kvik/layer_cache/install.h"

namespace nb = nanobind;

namespace kvik::python {
namespace {

// The entries of a list, moved into the form that the library installs over, and back.
class Entries {
 public:
  explicit Entries(nb::list list) : list_(std::move(list)) {
    for (const nb::handle entry : list_) objects_.push_back(nb::borrow(entry));
    for (const nb::object& entry : objects_) foreign_.push_back(describe(entry));
    // Nothing below throws, so that no cache is lost between here and put_back().
    for (size_t i = 0; i < objects_.size(); ++i) caches_.push_back(take_out(i));
  }

  std::vector<LayerCache>& caches() { return caches_; }

  // Gives each cache back to the object it came from; where its kind is another now, the list gets
  // a new object.
  void put_back() {
    for (size_t i = 0; i < objects_.size(); ++i) {
      std::visit([&](auto& cache) { put(i, cache); }, caches_[i]);
    }
  }

 private:
  struct Foreign {
    ForeignCache cache;
    std::optional<InputRows> rows;  // keep what `cache` borrows
  };

  static bool is_ours(nb::handle entry) {
    return nb::isinstance<PyTailOwned>(entry) || nb::isinstance<PyBlockOwned>(entry) ||
           nb::isinstance<PyPaged>(entry);
  }

  static Foreign describe(const nb::object& entry) {
    Foreign foreign;
    if (entry.is_none() || is_ours(entry)) return foreign;
    foreign.cache.has_index = nb::hasattr(entry, "_idx");
    foreign.cache.has_keys_and_values = nb::hasattr(entry, "keys") && nb::hasattr(entry, "values");
    foreign.cache.is_trimmable = nb::hasattr(entry, "is_trimmable") &&
                                 nb::cast<bool>(nb::bool_(entry.attr("is_trimmable")()));
    const ForeignCache& cache = foreign.cache;
    if (!cache.has_keys_and_values || !cache.is_trimmable || cache.has_index) return foreign;
    ForeignRows rows = import_foreign(entry);
    foreign.cache.offset = rows.offset;
    foreign.cache.step = rows.step;
    foreign.rows = std::move(rows.rows);
    if (foreign.rows) {
      foreign.cache.rows = KvArrays{foreign.rows->keys.view, foreign.rows->values.view, nullptr};
    }
    return foreign;
  }

  template <class Cache>
  LayerCache move_out(size_t i) {
    auto& held = nb::cast<Held<Cache>&>(objects_[i]);
    families_.push_back(held.family);
    return locked(held, [](Cache& cache) { return LayerCache(std::move(cache)); });
  }

  LayerCache take_out(size_t i) {
    const nb::object& entry = objects_[i];
    if (nb::isinstance<PyTailOwned>(entry)) return move_out<TailOwnedKVCache>(i);
    if (nb::isinstance<PyBlockOwned>(entry)) return move_out<BlockOwnedKVCache>(i);
    if (nb::isinstance<PyPaged>(entry)) return move_out<PagedKVCache>(i);
    const auto& rows = foreign_[i].rows;
    families_.push_back(rows ? rows->family().value_or(Bf16Family::own) : Bf16Family::own);
    if (entry.is_none()) return std::monostate();
    return std::move(foreign_[i].cache);
  }

  void put(size_t, std::monostate&) {}
  void put(size_t, ForeignCache&) {}
  template <class Cache>
  void put(size_t i, Cache& cache) {
    if (nb::isinstance<Held<Cache>>(objects_[i])) {
      auto& held = nb::cast<Held<Cache>&>(objects_[i]);
      locked(held, [&](Cache& place) { place = std::move(cache); });
      return;
    }
    list_[i] =
        nb::cast(new Held<Cache>(std::move(cache), families_[i]), nb::rv_policy::take_ownership);
  }

  nb::list list_;
  std::vector<nb::object> objects_;
  std::vector<Foreign> foreign_;
  std::vector<Bf16Family> families_;
  std::vector<LayerCache> caches_;
};

// `install` reports what it did, or why it did nothing.
template <class Install>
nb::dict install_over(const nb::list& list, Install install) {
  Entries entries(list);
  Result<InstallReport> report = [&] {
    const nb::gil_scoped_release no_gil;
    return install(entries.caches());
  }();
  entries.put_back();
  return dict_of(to_json(take(std::move(report))));
}

nb::dict install_tail_owned(const nb::list& list, std::optional<std::string> mode = std::nullopt,
                            std::optional<int64_t> step = std::nullopt) {
  if (!mode) mode = text_of(variables::kOwnedMode);
  if (!step) step = take(number_of(variables::kOwnedStep));
  const DetachMode detach = take(parse_detach_mode(mode.value_or("contiguous_eval")));
  return install_over(list, [&](std::vector<LayerCache>& caches) {
    return install_tail_owned_attention_kv_cache(caches, detach, step);
  });
}

nb::dict install_block_owned(const nb::list& list, std::optional<std::string> mode = std::nullopt,
                             std::optional<int64_t> block_size = std::nullopt) {
  if (!mode) mode = text_of(variables::kOwnedMode);
  if (!block_size) block_size = take(number_of(variables::kOwnedBlockSize));
  const DetachMode detach = take(parse_detach_mode(mode.value_or("contiguous_eval")));
  return install_over(list, [&](std::vector<LayerCache>& caches) {
    return install_block_owned_attention_kv_cache(
        caches, detach, block_size.value_or(BlockOwnedOptions{}.block_size));
  });
}

nb::dict install_paged(const Process& process, const nb::list& list, const nb::dict& given) {
  const PagedKVCacheOptions options = paged_options(process, given, Reads::of_installer);
  return install_over(list, [&](std::vector<LayerCache>& caches) {
    return install_vllm_metal_paged_attention_kv_cache(caches, options, process.backend);
  });
}

nb::dict configure(const Process& process, const nb::list& list) {
  if (take(flag_of(variables::kPagedAttention)).value_or(false)) {
    return install_paged(process, list, nb::dict());
  }
  const std::optional<std::string> kind = text_of(variables::kOwned);
  if (kind == "tail") return install_tail_owned(list);
  if (kind == "block") return install_block_owned(list);
  if (kind && *kind != "off" && *kind != "0" && *kind != "false" && *kind != "no") {
    throw nb::value_error(("KVIK_OWNED_ATTN_KV (or MTPLX_OWNED_ATTN_KV) is \"" + *kind +
                           "\"; it may be tail, block or off")
                              .c_str());
  }
  nb::dict report;
  report["enabled"] = false;
  report["entries"] = 0;
  report["skipped"] = nb::len(list);
  return report;
}

// Tail and block alike: the statistics of a list without moving its caches.
nb::object owned_stats(const nb::list& list) {
  Entries entries(list);
  const std::optional<TailOwnerStats> stats = tail_owned_attention_kv_stats(entries.caches());
  entries.put_back();
  if (!stats) return nb::none();
  return dict_of(to_json(*stats));
}

}  // namespace

void add_install(nb::module_& module, const Process& process) {
  def_function(
      module,
      "def install_tail_owned_attention_kv_cache(cache: list, mode: str | None = None, step: int | "
      "None = None) -> dict",
      [](const Arguments& a) {
        return install_tail_owned(a.list("cache"), a.optional_text("mode"),
                                  a.optional_integer("step"));
      },
      "Replaces entries of the list cache by TailOwnedKVCache, in place, all or none, with a "
      "copy of their rows; an entry of that kind stays and takes the settings. Skipped: None; "
      "what is not trimmable, has _idx (rotating), or no keys and values. mode None: "
      "KVIK_OWNED_ATTN_KV_MODE, else contiguous_eval; step None: KVIK_OWNED_ATTN_KV_STEP, else "
      "an entry's own, else 256.\n\nReturns enabled, mode, entries, skipped, step.");
  def_function(
      module,
      "def install_block_owned_attention_kv_cache(cache: list, mode: str | None = None, "
      "block_size: "
      "int | None = None) -> dict",
      [](const Arguments& a) {
        return install_block_owned(a.list("cache"), a.optional_text("mode"),
                                   a.optional_integer("block_size"));
      },
      "The same with BlockOwnedKVCache; TailOwnedKVCache entries are skipped too. block_size "
      "None: KVIK_OWNED_ATTN_KV_BLOCK_SIZE, else 1024.");
  def_function(
      module,
      "def install_vllm_metal_paged_attention_kv_cache(cache: list, **options: object) -> dict",
      [process](const Arguments& a) { return install_paged(process, a.list("cache"), a.others()); },
      "The same with PagedKVCache, whose constructor's options it takes; TailOwnedKVCache and "
      "BlockOwnedKVCache entries are skipped too. Options that are None are read from the "
      "environment, the low-bit storage and the first size of dynamic caches among them.\n\n"
      "A live PagedKVCache is encoded anew where it is to store another format.\n\n"
      "Returns enabled, mode, entries, skipped, block_size, num_blocks, turboquant, kv_quant, "
      "attention_impl, external_ops_required, and what applies of turboquant_k_quant, "
      "turboquant_v_quant, kv_quant_mode, format.");
  def_function(
      module, "def configure_tail_owned_attention_kv_cache(cache: list) -> dict",
      [process](const Arguments& a) { return configure(process, a.list("cache")); },
      "Installs what the environment asks for: paged caches where KVIK_PAGED_ATTN is on, else "
      "those of KVIK_OWNED_ATTN_KV (tail, block), else nothing. Returns the report.");
  def_function(
      module, "def tail_owned_attention_kv_stats(cache: list) -> dict | None",
      [](const Arguments& a) { return owned_stats(a.list("cache")); },
      "tail_owner_stats summed over the entries that are kvik's; None if there are none.");
}

}  // namespace kvik::python
