// Cuts one attention call into tasks and shares them out to threads.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/attend_task.h"

namespace kvik::cpu {

// Tasks in a fixed order with a share per thread. The cut never changes a result: partitions are
// fixed by position and merged in order, whoever computed them. Reused from call to call, so that
// planning allocates only while calls grow.
class AttendPlan {
 public:
  // Requires: a checked call, num_threads >= 1.
  void build(const AttentionCall& call, int num_threads);

  const std::vector<AttendTask>& tasks() const { return tasks_; }
  const std::vector<MergeTask>& merges() const { return merges_; }
  // Tasks of thread i are [thread_begin[i], thread_begin[i + 1]).
  const std::vector<int>& thread_begin() const { return thread_begin_; }
  // Floats that the partials of split tasks need; offsets below are into that array.
  int64_t partial_count() const { return partial_count_; }
  // Points the partials of all tasks into `base`, an array of partial_count() floats.
  void place_partials(float* base);

 private:
  // Rows that are merged together, and their keys.
  struct Block {
    int seq, kv_head, row_begin, num_rows;
    int64_t partition_begin, partition_end;
    int64_t cost;
  };
  void add_block(const AttentionCall& call, const Block& block, int64_t target_cost);
  void share_out(int num_threads);

  std::vector<Block> blocks_;
  std::vector<AttendTask> tasks_;
  std::vector<MergeTask> merges_;
  std::vector<int64_t> costs_;          // of tasks_
  std::vector<int64_t> task_offsets_;   // of tasks_ into the partials, -1: none needed
  std::vector<int64_t> merge_offsets_;  // of merges_
  std::vector<int> thread_begin_;
  int64_t partial_count_ = 0;
};

}  // namespace kvik::cpu
