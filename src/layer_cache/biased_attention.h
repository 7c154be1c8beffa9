// Attention under a mask that adds numbers to the scores, which no kernel does: plain loops, for
// the fallback.
#pragma once

#include <optional>

#include "kvik/attention/attention.h"
#include "kvik/layer_cache/causal_mask.h"

namespace kvik::internal {

// One batch row.
struct BiasedCall {
  ConstTensorView queries;  // [q_len, H, head_dim_k]
  TensorView out;           // [q_len, H, head_dim_v]
  ConstTensorView keys;     // [T, H_kv, head_dim_k]
  ConstTensorView values;   // [T, H_kv, head_dim_v]
  MaskView mask;
  int64_t batch_row = 0;
  // causal is not read; a window hides keys as it does under any mask array.
  AttentionParams params;
};

// score = softcap(scale * q . k) + mask, in double precision, keys in order: the same bits whatever
// the batch. Requires: a checked mask; last strides 1; H a multiple of H_kv.
void attend_biased(const BiasedCall& call);

}  // namespace kvik::internal
