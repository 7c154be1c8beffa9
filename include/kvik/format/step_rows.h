// What the views of one step of a cache may read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvik/core/export.h"

namespace kvik {

// Kept by the cache that hands the views out. A call that reads a view is checked against it
// (check() of attention.h), so that pages of other sequences, slots that no token of the sequence
// was written to, and steps that have ended are out of reach.
struct StepRows {
  uint64_t number = 0;  // of the step; counts on when a step begins and when it ends
  // The step's tables, which its views show whole or in part; valid while the step is open.
  std::span<const int32_t> page_indptr, page_ids, first_pos;
  // Per sequence, counted from first_pos: rows before the step, and with the step's new ones.
  std::vector<int32_t> committed_len, kv_len;
  // Per sequence: the position before which no query misses a row, whatever its window.
  std::vector<int32_t> floor_pos;
  std::vector<bool> written;  // per layer: the new rows are there
};

// The step and the layer that a view belongs to. By default none: rows of the caller's own.
class KVIK_API StepRef {
 public:
  StepRef() noexcept;
  // Of the step that is open now.
  StepRef(std::shared_ptr<const StepRows> rows, int layer) noexcept;
  StepRef(const StepRef&) noexcept;
  StepRef& operator=(const StepRef&) noexcept;
  ~StepRef();

  // Null: none.
  const StepRows* rows() const { return rows_.get(); }
  int layer() const { return layer_; }
  // Whether the step goes on. Requires: rows() is not null.
  bool is_open() const { return rows_->number == number_; }

 private:
  std::shared_ptr<const StepRows> rows_;
  uint64_t number_ = 0;
  int layer_ = 0;
};

}  // namespace kvik
