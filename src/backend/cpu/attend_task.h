// The work that the planner (attend_plan.h) hands to a kernel (attention_body.inl.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvik/attention/attention.h"

namespace kvik::cpu {

// The key range is cut at multiples of these, by absolute position. A partition is reduced by
// itself and partitions are merged in order; inside one, a step is what the softmax sees at once.
// Both are part of what makes results equal bit for bit, so no kernel may choose its own.
inline constexpr int kPartition = 512;
inline constexpr int kStep = 64;
inline constexpr int kTilesPerStep = kStep / kTileTokens;

// Query rows of one KV head that a task handles together: row r is query j = r / group, head
// kv_head * group + r % group, group = num_heads / num_kv_heads.
inline constexpr int kMaxTaskRows = 64;

// Floats of one stored partial: max, sum, then the accumulator from float 16 on.
inline constexpr int kPartialHeader = 16;
constexpr int64_t partial_floats(int head_dim_v) {
  return kPartialHeader + padded_dim_v(head_dim_v);
}

// Bytes of the unpacked tiles of a step, K or V.
constexpr int64_t step_bytes(int head_dim) {
  return int64_t{kStep} * padded_dim_v(head_dim) * int64_t{sizeof(float)};
}

struct AttendTask {
  int seq = 0;
  int kv_head = 0;
  int row_begin = 0;
  int num_rows = 0;  // at most kMaxTaskRows
  // Partitions to reduce.
  int64_t partition_begin = 0;
  int64_t partition_end = 0;
  // Null: the task covers all partitions of its rows and writes the output. Else where its partials
  // go: [partition - partition_begin][row] records of partial_floats.
  float* partials = nullptr;
};

// Rows whose partials were computed by several tasks; partials[0] is that of the first partition.
struct MergeTask {
  int seq = 0;
  int kv_head = 0;
  int row_begin = 0;
  int num_rows = 0;
  int64_t num_partitions = 0;
  const float* partials = nullptr;
};

// Memory of one thread; sizes from the largest call so far, see Workspace in cpu_backend.cc.
// 64-byte aligned, rows padded to 16 floats.
struct AttendScratch {
  float* query = nullptr;      // [kMaxTaskRows][query_stride]
  float* prepared = nullptr;   // the same, after the segment's preparation
  float* integers = nullptr;   // [kMaxTaskRows][query_stride + 16] prepared, as integers
  float* added = nullptr;      // [kMaxTaskRows] number to add to a row's dots
  float* scores = nullptr;     // [4][kStep]
  float* max = nullptr;        // [kMaxTaskRows] of the partition
  float* sums = nullptr;       // [kMaxTaskRows][16] lane sums of the partition
  float* acc = nullptr;        // [kMaxTaskRows][value_stride] of the partition
  float* total_max = nullptr;  // [kMaxTaskRows] of the partitions before
  float* total_sum = nullptr;
  float* total_acc = nullptr;
  // 4 tiles: row-major sources are packed into these, packed formats unpacked.
  std::byte* step_k = nullptr;
  std::byte* step_v = nullptr;
  float scale = 1.0f;          // of the scores
  bool uses_integers = false;  // for the packed codes that have them
  int64_t query_stride = 0;
  int64_t value_stride = 0;
};

// One instruction set's kernels. Requires: a checked call; the task lies inside it.
struct AttendKernels {
  void (*attend)(const AttentionCall& call, const AttendTask& task, AttendScratch& scratch);
  void (*merge)(const AttentionCall& call, const MergeTask& task, AttendScratch& scratch);
  // A tile of a packed code as an f32 tile of padded_dim_v(head_dim) * 16 floats: K as lines of one
  // dim, V as lines of one token of 16 dims; the values of decode_stored_k_row and its sister.
  void (*unpack)(KvCode code, bool is_key, const std::byte* tile, int head_dim, float* out);
};

// Compiled in when KVIK_HAVE_SPINE_* says so; calling one needs a processor that has it.
extern const AttendKernels kScalarKernels;
extern const AttendKernels kAvx2Kernels;
extern const AttendKernels kAvx512Kernels;

}  // namespace kvik::cpu
