#include "kvik/core/read_rate.h"

#include <algorithm>
#include <chrono>

namespace kvik {
namespace {

constexpr StreamPattern kPatterns[] = {{1, 0}, {1, 1024}, {1, 4096}, {2, 0},   {2, 1024},
                                       {4, 0}, {4, 1024}, {8, 0},    {8, 1024}};

// Reads `bytes` bytes and returns something that depends on all of them.
uint64_t read_stream(const std::byte* data, int64_t bytes, StreamPattern pattern) {
  using Vector = uint64_t __attribute__((vector_size(16), may_alias, aligned(16)));
  const int64_t stretch = bytes / pattern.num_streams / 256 * 256;
  Vector sums[4] = {};
  for (int64_t i = 0; i < stretch; i += 256) {
    for (int s = 0; s < pattern.num_streams; ++s) {
      const std::byte* const at = data + s * stretch + i;
      for (int line = 0; line < 256; line += 64) {
        if (pattern.ahead > 0) __builtin_prefetch(at + pattern.ahead + line);
        for (int k = 0; k < 4; ++k) {
          sums[k] ^= *reinterpret_cast<const Vector*>(at + line + 16 * k);
        }
      }
    }
  }
  const Vector total = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  return total[0] ^ total[1];
}

}  // namespace

ReadRate::ReadRate(ThreadTeam& team, const Buffer& buffer) : team_(team), buffer_(buffer) {
  double best = 0;
  for (const StreamPattern pattern : kPatterns) {
    const double rate = std::max(run(pattern), run(pattern));
    if (rate <= best) continue;
    best = rate;
    pattern_ = pattern;
  }
}

double ReadRate::run(StreamPattern pattern) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  team_.run([&](int thread) {
    const Range share = static_share(buffer_.committed_bytes() / 4096, thread, team_.size());
    sink_ ^=
        read_stream(buffer_.data() + share.begin * 4096, (share.end - share.begin) * 4096, pattern);
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return static_cast<double>(buffer_.committed_bytes()) / seconds / 1e9;
}

}  // namespace kvik
