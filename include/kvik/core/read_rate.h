// How fast this machine reads memory: the yardstick beside every other rate.
#pragma once

#include <atomic>
#include <cstdint>

#include "kvik/core/buffer.h"
#include "kvik/core/export.h"
#include "kvik/core/thread_team.h"

namespace kvik {

// A way to stream through memory: `num_streams` stretches at once, prefetched `ahead` bytes ahead.
struct StreamPattern {
  int num_streams = 1;
  int64_t ahead = 0;
};

// The read rate of a team over the committed bytes of a buffer, which should be several times
// larger than the processor's caches. Machines differ in the pattern that reads fastest, so the
// constructor tries several, each twice, and keeps the best. Borrows the team and the buffer.
class KVIK_API ReadRate {
 public:
  ReadRate(ThreadTeam& team, const Buffer& buffer);

  // One pass over the buffer, in GB/s (10^9 bytes).
  double measure() { return run(pattern_); }
  StreamPattern pattern() const { return pattern_; }

 private:
  double run(StreamPattern pattern);

  ThreadTeam& team_;
  const Buffer& buffer_;
  StreamPattern pattern_;
  std::atomic<uint64_t> sink_{0};
};

}  // namespace kvik
