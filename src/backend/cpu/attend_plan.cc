#include "backend/cpu/attend_plan.h"

#include <algorithm>

#include "kvik/core/checked_math.h"

namespace kvik::cpu {
namespace {

// Tasks per thread to aim for: enough to even out their sizes, few enough to keep partials few.
constexpr int64_t kTasksPerThread = 4;
// Partials beyond this are not worth their memory; blocks then stay whole.
constexpr int64_t kMaxPartialFloats = int64_t{16} << 20;

// All keys that the rows of queries [first, last] may read.
PositionRange reach(const AttentionCall& call, int seq, int64_t first, int64_t last) {
  PositionRange all = {INT64_MAX, 0};
  for (int s = 0; s < static_cast<int>(call.segments.size()); ++s) {
    // A range only grows with the query's position at its end and shrinks at its begin, so the
    // first and the last query bound all others.
    for (const int64_t p : {first, last}) {
      const PositionRange range = visible_range(call, s, seq, p);
      if (range.empty()) continue;
      all.begin = std::min(all.begin, range.begin);
      all.end = std::max(all.end, range.end);
    }
  }
  return all.empty() ? PositionRange{0, 0} : all;
}

}  // namespace

void AttendPlan::build(const AttentionCall& call, int num_threads) {
  blocks_.clear();
  tasks_.clear();
  merges_.clear();
  costs_.clear();
  task_offsets_.clear();
  merge_offsets_.clear();
  partial_count_ = 0;
  const int num_kv_heads = call.segments[0].view.num_kv_heads;
  const int group = call.num_heads() / num_kv_heads;
  int64_t total = 0;
  for (int seq = 0; seq < call.num_seqs(); ++seq) {
    const int64_t num_rows = int64_t{call.q_len(seq)} * group;
    const int64_t first_position = sequence_end(call, seq) - call.q_len(seq);
    for (int64_t row = 0; row < num_rows; row += kMaxTaskRows) {
      const int64_t count = std::min<int64_t>(kMaxTaskRows, num_rows - row);
      const PositionRange keys = reach(call, seq, first_position + row / group,
                                       first_position + (row + count - 1) / group);
      const int64_t cost = (keys.end - keys.begin + kStep) * count;
      for (int head = 0; head < num_kv_heads; ++head) {
        blocks_.push_back({seq, head, static_cast<int>(row), static_cast<int>(count),
                           keys.begin / kPartition, ceil_div(keys.end, kPartition), cost});
        total += cost;
      }
    }
  }
  const int64_t target = num_threads == 1 ? INT64_MAX : total / (num_threads * kTasksPerThread) + 1;
  for (const Block& block : blocks_) add_block(call, block, target);
  share_out(num_threads);
}

void AttendPlan::add_block(const AttentionCall& call, const Block& block, int64_t target_cost) {
  const int64_t num_partitions = block.partition_end - block.partition_begin;
  const int64_t record = partial_floats(call.segments[0].view.head_dim_v);
  const int64_t floats = num_partitions * block.num_rows * record;
  int64_t pieces = std::clamp<int64_t>(ceil_div(block.cost, target_cost), 1,
                                       std::max<int64_t>(num_partitions, 1));
  if (partial_count_ + floats > kMaxPartialFloats) pieces = 1;
  AttendTask task{block.seq,      block.kv_head,         block.row_begin,
                  block.num_rows, block.partition_begin, block.partition_end,
                  nullptr};
  if (pieces == 1) {
    tasks_.push_back(task);
    costs_.push_back(block.cost);
    task_offsets_.push_back(-1);
    return;
  }
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t begin = block.partition_begin + num_partitions * i / pieces;
    const int64_t end = block.partition_begin + num_partitions * (i + 1) / pieces;
    task.partition_begin = begin;
    task.partition_end = end;
    tasks_.push_back(task);
    costs_.push_back(block.cost / num_partitions * (end - begin) + 1);
    task_offsets_.push_back(partial_count_ +
                            (begin - block.partition_begin) * block.num_rows * record);
  }
  merges_.push_back(
      {block.seq, block.kv_head, block.row_begin, block.num_rows, num_partitions, nullptr});
  merge_offsets_.push_back(partial_count_);
  partial_count_ += floats;
}

void AttendPlan::share_out(int num_threads) {
  int64_t total = 0;
  for (const int64_t cost : costs_) total += cost;
  thread_begin_.assign(static_cast<size_t>(num_threads) + 1, static_cast<int>(tasks_.size()));
  thread_begin_[0] = 0;
  int64_t before = 0;
  int thread = 1;
  for (size_t i = 0; i < tasks_.size() && thread < num_threads; ++i) {
    // Thread t begins with the task whose middle lies past t / num_threads of the whole.
    while (thread < num_threads && (2 * before + costs_[i]) / 2 * num_threads >= total * thread) {
      thread_begin_[static_cast<size_t>(thread++)] = static_cast<int>(i);
    }
    before += costs_[i];
  }
}

void AttendPlan::place_partials(float* base) {
  for (size_t i = 0; i < tasks_.size(); ++i) {
    tasks_[i].partials = task_offsets_[i] < 0 ? nullptr : base + task_offsets_[i];
  }
  for (size_t i = 0; i < merges_.size(); ++i) merges_[i].partials = base + merge_offsets_[i];
}

}  // namespace kvik::cpu
