#include "kvik/cache/cache_set.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cache/exact_rows.h"
#include "cache/plan_state.h"

namespace kvik {

namespace internal {
// Shared by a set and its open plans.
struct SetCore {
  uint64_t next_id = 1;
  std::vector<AppendPlan> spare;  // the memory of a finished step, for the next one
};
}  // namespace internal

SetPlan::SetPlan(SetPlan&& other) noexcept = default;

SetPlan& SetPlan::operator=(SetPlan&& other) noexcept {
  std::swap(core_, other.core_);
  std::swap(plans_, other.plans_);
  return *this;
}

SetPlan::~SetPlan() {
  if (core_ == nullptr) return;
  plans_.clear();
  core_->spare = std::move(plans_);
}

Result<CacheSet> CacheSet::create(std::span<const PagedCacheOptions> options,
                                  const std::shared_ptr<Backend>& backend) {
  if (options.empty()) return invalid_argument("a cache set needs at least one cache");
  CacheSet set;
  set.core_ = std::make_shared<internal::SetCore>();
  for (const PagedCacheOptions& each : options) {
    PagedCacheOptions plain = each;
    plain.exact_first = plain.exact_recent = 0;
    Result<PagedCache> cache = PagedCache::create(plain, backend);
    if (!cache.ok()) return cache.status();
    set.caches_.push_back(std::move(cache).value());
  }
  for (const PagedCacheOptions& each : options) {
    ExactRows exact;
    if (Status status = set.add_exact_rows(each, backend, exact); !status.ok()) return status;
    set.exact_.push_back(std::move(exact));
  }
  for (size_t i = 0; i < set.caches_.size(); ++i) {
    set.caches_[i].join_set(static_cast<int>(i), set.core_.get());
  }
  return set;
}

Status CacheSet::add_exact_rows(const PagedCacheOptions& options,
                                const std::shared_ptr<Backend>& backend, ExactRows& exact) {
  if (options.exact_first < 0 || options.exact_recent < 0) {
    return invalid_argument("exact_first " + std::to_string(options.exact_first) +
                            " and exact_recent " + std::to_string(options.exact_recent) +
                            " count tokens");
  }
  const internal::ExactRowOptions beside = internal::exact_row_options(options);
  exact.layers = beside.layers;
  const auto add = [&](const std::optional<PagedCacheOptions>& rows,
                       std::optional<size_t>& idx) -> Status {
    if (!rows) return {};
    Result<PagedCache> cache = PagedCache::create(*rows, backend);
    if (!cache.ok()) return cache.status();
    idx = caches_.size();
    caches_.push_back(std::move(cache).value());
    return {};
  };
  if (Status status = add(beside.first, exact.first); !status.ok()) return status;
  if (beside.first) exact.num_first = *beside.first->first_tokens;
  if (beside.recent) exact.num_recent = *beside.recent->window;
  return add(beside.recent, exact.recent);
}

void CacheSet::write(SetPlan& plan, int cache_idx, int layer, const ConstTensorView& k,
                     const ConstTensorView& v) {
  const auto idx = static_cast<size_t>(cache_idx);
  caches_[idx].write(plan.plans_[idx], layer, k, v);
  const ExactRows& exact = exact_[idx];
  for (const std::optional<size_t>& beside : {exact.first, exact.recent}) {
    if (!beside) continue;
    const std::optional<int> at = exact.layers[static_cast<size_t>(layer)];
    if (at) caches_[*beside].write(plan.plans_[*beside], *at, k, v);
  }
}

LayerSegments CacheSet::segments(const SetPlan& plan, int cache_idx, int layer) const {
  const auto idx = static_cast<size_t>(cache_idx);
  const ExactRows& exact = exact_[idx];
  const std::optional<int> at = exact.layers[static_cast<size_t>(layer)];
  // All of them hide what the layer's window hides; recent rows have a window of their own.
  const std::optional<int> window = caches_[idx].window();
  LayerSegments segments;
  const auto add = [&segments, &window](Segment segment) {
    segment.view.window = window;
    segments.add(segment);
  };
  Segment own{.view = caches_[idx].view(plan.plans_[idx], layer)};
  if (at && exact.first) {
    add({.view = caches_[*exact.first].view(plan.plans_[*exact.first], *at),
         .begin = 0,
         .end = exact.num_first});
    own.begin = exact.num_first;
  }
  add(own);
  if (at && exact.recent) {
    add({.view = caches_[*exact.recent].view(plan.plans_[*exact.recent], *at),
         .begin = 0,
         .newest = exact.num_recent});
  }
  return segments;
}

CacheStats CacheSet::stats(int cache_idx) const {
  const auto idx = static_cast<size_t>(cache_idx);
  CacheStats stats = caches_[idx].stats();
  for (const std::optional<size_t>& beside : {exact_[idx].first, exact_[idx].recent}) {
    if (!beside) continue;
    const CacheStats more = caches_[*beside].stats();
    stats.nbytes += more.nbytes;
    stats.committed_bytes += more.committed_bytes;
    stats.resident_bytes += more.resident_bytes;
    stats.encoded_rows += more.encoded_rows;
    stats.copied_rows += more.copied_rows;
    stats.copy_on_write_copies += more.copy_on_write_copies;
  }
  return stats;
}

Sequence CacheSet::new_sequence() {
  Sequence sequence;
  for (const PagedCache& cache : caches_) {
    if (!cache.has_room_for_sequence()) return sequence;
  }
  sequence.state_ = std::make_shared<internal::SequenceState>();
  sequence.state_->id = core_->next_id++;
  sequence.state_->tables.resize(caches_.size());
  sequence.state_->owner = core_.get();
  for (PagedCache& cache : caches_) cache.core_->only = sequence.state_;
  return sequence;
}

Result<SetPlan> CacheSet::reserve(std::span<const AppendRequest> requests) {
  for (const AppendRequest& request : requests) {
    if (Status status = caches_[0].check_request(request); !status.ok()) return status;
    if (request.sequence->state_->has_open_plan) {
      return invalid_argument("sequence " + std::to_string(request.sequence->id()) +
                              " has an open plan; commit or drop it first");
    }
  }
  SetPlan set_plan;
  set_plan.core_ = core_;
  set_plan.plans_ = std::move(core_->spare);
  set_plan.plans_.reserve(caches_.size());
  for (PagedCache& cache : caches_) {
    Result<AppendPlan> plan = cache.reserve_step(requests);
    if (!plan.ok()) return plan.status();  // dropping the plans so far gives their pages back
    set_plan.plans_.push_back(std::move(plan).value());
  }
  return set_plan;
}

Status CacheSet::commit(SetPlan plan) {
  if (plan.plans_.size() != caches_.size()) {
    return invalid_argument("commit needs an open plan of this set");
  }
  for (size_t i = 0; i < caches_.size(); ++i) {
    if (Status status = caches_[i].check_commit(plan.plans_[i]); !status.ok()) {
      return {status.code(), "cache " + std::to_string(i) + ": " + status.message()};
    }
  }
  for (size_t i = 0; i < caches_.size(); ++i) caches_[i].apply_commit(plan.plans_[i]);
  for (internal::PlanItem& item : plan.plans_[0].state_->items) {
    item.sequence->num_cached += item.num_tokens;
  }
  return {};
}

Status CacheSet::truncate(Sequence& sequence, int num_tokens) {
  for (const PagedCache& cache : caches_) {
    if (Status status = cache.check_truncate(sequence, num_tokens); !status.ok()) return status;
  }
  for (PagedCache& cache : caches_) cache.apply_truncate(sequence, num_tokens);
  sequence.state_->num_cached = num_tokens;
  return {};
}

Result<Sequence> CacheSet::fork(const Sequence& sequence) {
  for (const PagedCache& cache : caches_) {
    if (cache.core_->options.contiguous) return cache.fork_tables(sequence, 0);  // refuses
  }
  return caches_[0].fork_tables(sequence, core_->next_id++);
}

}  // namespace kvik
