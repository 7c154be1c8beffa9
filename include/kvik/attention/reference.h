// The slow, obvious attention in double precision: the oracle of every kernel.
#pragma once

#include <vector>

#include "kvik/attention/attention.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

struct ReferenceResult {
  std::vector<double> out;       // [num_queries][num_heads][head_dim_v]
  std::vector<double> lse;       // [num_queries][num_heads]
  std::vector<double> lse_keys;  // [num_queries][num_heads]
};

// Computes the call of attention.h row by row, key by key; call.out and the lse views only give
// shapes. Errors: as check().
KVIK_API Result<ReferenceResult> reference_attention(const AttentionCall& call);

}  // namespace kvik
