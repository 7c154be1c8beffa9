// The caches as Python holds them.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "arrays.h"
#include "kvik/layer_cache/block_owned_kv_cache.h"
#include "kvik/layer_cache/paged_kv_cache.h"
#include "kvik/layer_cache/tail_owned_kv_cache.h"
#include "process.h"

namespace kvik::python {

// A cache behind a mutex: the library wants one thread at a time, and a call lets other Python
// threads run, so that two of them must not meet in one cache.
template <class Cache>
struct Held {
  struct Body {
    explicit Body(Cache c) : cache(std::move(c)) {}
    std::mutex mutex;
    Cache cache;
  };
  explicit Held(Cache c, Bf16Family f = Bf16Family::own)
      : body(std::make_shared<Body>(std::move(c))), family(f) {}

  std::shared_ptr<Body> body;      // also of nodes in graphs, which run without Python
  std::atomic<Bf16Family> family;  // that of the last bf16 rows that came in
};

using PyTailOwned = Held<TailOwnedKVCache>;
using PyBlockOwned = Held<BlockOwnedKVCache>;
using PyPaged = Held<PagedKVCache>;

// Calls f(cache) alone and without the GIL. f must not touch Python.
template <class Cache, class Function>
auto locked(Held<Cache>& held, Function&& f) {
  const nanobind::gil_scoped_release no_gil;
  const std::lock_guard lock(held.body->mutex);
  return f(held.body->cache);
}

template <class Cache>
Held<Cache>* fork_of(Held<Cache>& held) {
  return new Held<Cache>(locked(held, [](Cache& cache) { return cache.fork(); }), held.family);
}

// Rows that came from Python.
struct InputRows {
  InputArray keys, values;
  std::optional<Bf16Family> family() const { return keys.family ? keys.family : values.family; }
};
InputRows import_rows(nanobind::handle keys, nanobind::handle values);

// The rows of a cache of another library: its keys, values and offset. None: it has no keys yet.
struct ForeignRows {
  std::optional<InputRows> rows;
  int64_t offset = 0;
  std::optional<int64_t> step;
};
ForeignRows import_foreign(nanobind::handle entry);

// (keys, values); none for None, an empty sequence or a pair of None. Throws ValueError otherwise.
std::optional<InputRows> import_state(nanobind::handle state);

void add_tail_owned(nanobind::module_& module, const Process& process);
void add_block_owned(nanobind::module_& module, const Process& process);
void add_paged(nanobind::module_& module, const Process& process);
// What a paged cache has of pages and codes.
void add_page_members(nanobind::class_<PyPaged>& cls);
void add_install(nanobind::module_& module, const Process& process);
void add_attend(nanobind::module_& module, const Process& process);
void add_formats(nanobind::module_& module);
void add_process(nanobind::module_& module, const Process& process);

}  // namespace kvik::python
