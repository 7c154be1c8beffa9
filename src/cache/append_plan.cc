#include "kvik/cache/append_plan.h"

#include <utility>

#include "cache/plan_state.h"

namespace kvik {

namespace internal {

void PlanState::open(int num_layers) {
  ++rows->number;
  rows->page_indptr = page_indptr;
  rows->page_ids = page_ids;
  rows->first_pos = first_pos;
  rows->kv_len = kv_len;
  rows->written.assign(static_cast<size_t>(num_layers), false);
}

void PlanState::clear() {
  ++rows->number;
  rows->committed_len.clear();
  rows->kv_len.clear();
  rows->floor_pos.clear();
  rows->written.clear();
  for (PlanItem& item : items) item.sequence->has_open_plan = false;
  items.clear();
  pages.clear();
  query_indptr.clear();
  positions.clear();
  seq_lens.clear();
  slots.clear();
  page_indptr.clear();
  page_ids.clear();
  first_pos.clear();
  kv_len.clear();
  error = {};
}

}  // namespace internal

AppendPlan::AppendPlan() = default;
AppendPlan::AppendPlan(AppendPlan&&) noexcept = default;

AppendPlan& AppendPlan::operator=(AppendPlan&& other) noexcept {
  std::swap(core_, other.core_);
  std::swap(state_, other.state_);
  return *this;
}

AppendPlan::~AppendPlan() {
  if (state_ == nullptr) return;
  state_->clear();
  core_->spare = std::move(state_);
}

int AppendPlan::num_tokens() const { return state_ ? static_cast<int>(state_->slots.size()) : 0; }
int AppendPlan::num_seqs() const { return state_ ? static_cast<int>(state_->items.size()) : 0; }

std::span<const int32_t> AppendPlan::query_indptr() const {
  return state_ ? std::span<const int32_t>(state_->query_indptr) : std::span<const int32_t>();
}
std::span<const int32_t> AppendPlan::positions() const {
  return state_ ? std::span<const int32_t>(state_->positions) : std::span<const int32_t>();
}
std::span<const int32_t> AppendPlan::seq_lens() const {
  return state_ ? std::span<const int32_t>(state_->seq_lens) : std::span<const int32_t>();
}

}  // namespace kvik
