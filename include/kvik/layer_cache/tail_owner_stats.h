// Counters of the tail- and block-owned caches.
#pragma once

#include <cstdint>
#include <string>

#include "kvik/core/export.h"

namespace kvik {

struct TailOwnerStats {
  std::string mode;            // name of the detach mode
  int64_t updates = 0;         // tail-owned: calls; block-owned: pieces, one per block touched
  int64_t arrays = 0;          // arrays taken: two per update
  int64_t bytes = 0;           // bytes of the new rows; nothing else is ever written by an update
  double time_s = 0;           // seconds spent in updates
  int64_t copies = 0;          // updates that had to copy the history first (a fork, a trim)
  int64_t nbytes = 0;          // capacity * bytes of a row
  int64_t resident_bytes = 0;  // memory that the system holds; shared with forks and views
};

// One object with the members as keys.
KVIK_API std::string to_json(const TailOwnerStats& stats);

}  // namespace kvik
