// One step of a cache: the slots of its new tokens, held from reserve to commit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvik/core/export.h"

namespace kvik {

namespace internal {
struct CacheCore;
struct PlanState;
}  // namespace internal

// What PagedCache::reserve hands out: block tables that include the step's new tokens, their slots
// and positions. Pages are already taken, so nothing after it can run out. Dropping the plan gives
// them back and leaves the sequences as they were. Move-only.
class KVIK_API AppendPlan {
 public:
  AppendPlan();
  AppendPlan(AppendPlan&&) noexcept;
  AppendPlan& operator=(AppendPlan&&) noexcept;
  ~AppendPlan();

  // New tokens of all sequences, in the order of the requests.
  int num_tokens() const;
  int num_seqs() const;
  // num_seqs + 1: new tokens of sequence b are [b], [b + 1); as AttentionCall::query_indptr wants
  // it.
  std::span<const int32_t> query_indptr() const;
  // Absolute position of each new token.
  std::span<const int32_t> positions() const;
  // Tokens of each sequence, the new ones included.
  std::span<const int32_t> seq_lens() const;

 private:
  friend class PagedCache;
  friend class CacheSet;
  std::shared_ptr<internal::CacheCore> core_;
  std::unique_ptr<internal::PlanState> state_;
};

}  // namespace kvik
