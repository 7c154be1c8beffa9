#include "kvik/cache/cache_set.h"

#include <string>
#include <utility>

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
    Result<PagedCache> cache = PagedCache::create(each, backend);
    if (!cache.ok()) return cache.status();
    cache->join_set(static_cast<int>(set.caches_.size()), set.core_.get());
    set.caches_.push_back(std::move(cache).value());
  }
  return set;
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
