// What a view that a cache handed out may read.
#pragma once

#include "kvik/attention/attention.h"
#include "kvik/core/status.h"

namespace kvik::internal {

// Ok for rows of the caller's own; else whether the view's step is open, and its layer's new rows
// are written. To be asked before anything that the view points to is read.
Status check_step_open(const KvView& view);

// Ok for rows of the caller's own; else whether the segment's tables are those of its step, whole
// or some sequences of them, with rows that are there, and whether the queries' windows reach no
// row that was given back. Requires: check_step_open, and a view whose arrays fit the call.
Status check_step_rows(const Segment& segment, const AttentionCall& call);

}  // namespace kvik::internal
