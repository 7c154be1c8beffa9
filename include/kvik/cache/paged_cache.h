// The paged cache: many sequences in one pool of pages, with sharing and copy-on-write.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvik/backend/backend.h"
#include "kvik/cache/append_plan.h"
#include "kvik/cache/sequence.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/format/kv_format.h"
#include "kvik/format/kv_view.h"

namespace kvik {

namespace internal {
struct CacheAccess;
}

struct PagedCacheOptions {
  KvSpec spec;
  int block_size = 16;    // tokens, a multiple of 16
  int num_blocks = 0;     // blocks backed with memory when the cache is made
  int max_blocks = 1024;  // the limit to which it grows; address space for it is reserved at once
  // Layers that attend to a window only: blocks whose tokens all lie below committed - window -
  // rollback_slack are given back. Slack: how far below the longest it has been a sequence can be
  // truncated.
  std::optional<int> window = std::nullopt;
  int rollback_slack = 64;
  // Only the rows of positions below it are stored: the exact first rows beside a packed cache.
  std::optional<int> first_tokens = std::nullopt;
  // For CacheSet, which keeps these rows in f16 beside the layers that store a packed format and
  // reads them instead: those of the first exact_first positions, and for a query at p those of
  // t > p - exact_recent. The packed rows are written too. 0: none.
  int exact_first = 0;
  int exact_recent = 0;
  // One sequence at a time, whose block i is page i: its rows lie one after the other. A second
  // sequence and forks are refused.
  bool contiguous = false;
};

// Bytes of one row as it is moved from cache to cache: packed_row_bytes, or the elements of a plain
// code. Requires: check(code, head_dim).ok().
KVIK_API int64_t stored_row_bytes(KvCode code, int head_dim);

// Counters and sizes of one cache, at one moment.
struct CacheStats {
  std::string backend;           // instruction set whose kernels run
  int64_t max_blocks = 0;        // the limit
  int64_t committed_blocks = 0;  // backed by memory: the capacity now
  int64_t used_blocks = 0;
  int64_t shared_blocks = 0;         // held by more than one handle
  int64_t nbytes = 0;                // rows' share of the committed blocks
  int64_t committed_bytes = 0;       // memory asked of the system
  int64_t resident_bytes = 0;        // memory that the system holds
  int64_t encoded_rows = 0;          // (token, head, layer) written by write(); K and V count once
  int64_t copied_rows = 0;           // (token, head, layer) moved by copy-on-write
  int64_t copy_on_write_copies = 0;  // pages
};

// A step is reserve -> (write, attend) for each layer in any order -> commit. Only reserve can run
// out.
//
//   Sequence s = cache.new_sequence();
//   AppendRequest request{&s, 1};
//   Result<AppendPlan> plan = cache.reserve({&request, 1});  // growth and copy-on-write
//   for each layer:
//     cache.write(*plan, layer, k, v);  // new rows become readable in view()
//     attend(backend, {... {cache.view(*plan, layer)} ...});
//   Status status = cache.commit(std::move(*plan));  // lengths grow here
//
// Threads: one at a time; different caches are independent.
class KVIK_API PagedCache {
 public:
  // Errors: invalid_argument naming the option, unsupported (by the back end; exact rows without a
  // CacheSet), out_of_memory.
  static Result<PagedCache> create(const PagedCacheOptions& options,
                                   std::shared_ptr<Backend> backend);

  // A sequence of no tokens; it may outlive the cache. An empty handle if the cache belongs to a
  // CacheSet, or is contiguous and has a sequence.
  Sequence new_sequence();

  // Takes slots for all requests or for none. A request of 0 tokens gives a plan to read with.
  // Errors, nothing changed: out_of_pages naming need and limit; out_of_memory; invalid_argument
  // for a null or foreign sequence, a negative count, a sequence named twice or with an open plan,
  // or a length beyond 2^31 - 1.
  Result<AppendPlan> reserve(std::span<const AppendRequest> requests);

  // Stores the plan's new tokens of one layer: k [num_tokens, num_kv_heads, head_dim_k], v [.., ..,
  // head_dim_v], f32, f16 or bf16, last stride 1. A wrong shape or layer stores nothing; it and the
  // first row that the format refuses are remembered, and commit returns them. A layer may be
  // written again.
  void write(AppendPlan& plan, int layer, const ConstTensorView& k, const ConstTensorView& v);

  // As write(), but of rows that are encoded already, exactly: for each token, for each head, the
  // bytes of one row (stored_row_bytes). Remembered as write()'s errors are: a wrong layer or size,
  // and the first packed row that stands for a value which is not finite.
  void write_codes(AppendPlan& plan, int layer, std::span<const std::byte> k,
                   std::span<const std::byte> v);

  // The layer's rows, new ones included, for an attention call, with the cache's window. Readable
  // while the plan is open and once the layer is written; kvik::attend refuses the view otherwise,
  // and a view changed so that it shows other rows than those of the plan's sequences. Requires:
  // layer in range.
  KvView view(const AppendPlan& plan, int layer) const;

  // Ends the step: the sequences now hold the new tokens. Errors, lengths unchanged and the pages
  // given back: what write() remembered; invalid_argument for a layer that was not written.
  Status commit(AppendPlan plan);

  // Keeps the first num_tokens tokens and gives whole blocks after them back. O(1) in the tail.
  // Errors, nothing changed: invalid_argument for a foreign sequence, an open plan, or a count that
  // is negative or more than cached; unsupported when a window has already given the rows back.
  Status truncate(Sequence& sequence, int num_tokens);

  // Another sequence with the same tokens in the same pages; the first of the two to write into the
  // partial last block gets its own copy, unless it is the one that filled it. Errors:
  // invalid_argument for a foreign sequence or one with an open plan; unsupported for a contiguous
  // cache.
  Result<Sequence> fork(const Sequence& sequence);

  const KvSpec& spec() const;
  int block_size() const;
  std::optional<int> window() const;  // as made
  CacheStats stats() const;

 private:
  friend class CacheSet;
  friend struct internal::CacheAccess;
  explicit PagedCache(std::shared_ptr<internal::CacheCore> core) : core_(std::move(core)) {}

  // CacheSet: `table_idx` names this cache's table in a sequence, `owner` the set.
  void join_set(int table_idx, const void* owner);
  // The steps of the public calls, for a set to combine.
  Status check_alone() const;
  bool has_room_for_sequence() const;
  Status check_request(const AppendRequest& request) const;
  Result<AppendPlan> reserve_step(std::span<const AppendRequest> requests);
  Result<Sequence> fork_tables(const Sequence& sequence, uint64_t id) const;
  Status check_commit(const AppendPlan& plan) const;
  void apply_commit(AppendPlan& plan);
  Status check_truncate(const Sequence& sequence, int num_tokens) const;
  void apply_truncate(Sequence& sequence, int num_tokens);
  Status check_owned(const Sequence& sequence) const;
  static Status check_no_plan(const internal::SequenceState& sequence);
  Result<int64_t> drop_unit() const;
  void apply_drop(Sequence& sequence, int begin, int count);

  std::shared_ptr<internal::CacheCore> core_;
};

}  // namespace kvik
