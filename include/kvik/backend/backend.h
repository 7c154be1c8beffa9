// Where rows are stored and attention is computed: one of the library's two virtual seams.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kvik/attention/attention.h"
#include "kvik/core/buffer.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/core/tensor_view.h"
#include "kvik/format/kv_view.h"

namespace kvik {

// Called once per layer. Threads: any; calls that compute wait for each other.
class KVIK_API Backend {
 public:
  virtual ~Backend() = default;

  // "cpu-avx2", ...: the instruction set whose kernels run; recorded in statistics and snapshots.
  virtual std::string_view name() const = 0;

  // Ok, or unsupported naming what cannot be served. Asked once, when a cache is made.
  virtual Status supports(const KvSpec& spec, const AttentionParams& params) const = 0;

  // Address space for rows. Errors: as Buffer::reserve.
  virtual Result<Buffer> reserve(int64_t bytes) = 0;

  // Stores k [num_tokens, num_kv_heads, head_dim_k] and v [.., .., head_dim_v], last stride 1, of
  // any dtype: token i goes to slot slots[i] = page * block_size + offset in the page, at position
  // positions[i]. Only those slots are touched; each row is encoded by itself, a row that the
  // format refuses as zeros. Returns the index of the first token with such a row, if any.
  // Requires: shapes fit the view, slots lie in its pages.
  virtual std::optional<int64_t> encode(const MutableKvView& view, const ConstTensorView& k,
                                        const ConstTensorView& v, std::span<const int64_t> slots,
                                        std::span<const int32_t> positions) = 0;

  // Computes the call of attention.h. Requires: check(call) is ok; use kvik::attend for the checked
  // door.
  virtual void attend(const AttentionCall& call) = 0;
};

// The checked door: check(call), then backend.attend(call). Nothing is written unless the check is
// ok.
KVIK_API Status attend(Backend& backend, const AttentionCall& call);

}  // namespace kvik
