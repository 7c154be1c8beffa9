// What all benchmarks share: the clock, medians, and the machine's read rate.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvik/core/buffer.h"
#include "kvik/core/cpu_features.h"
#include "kvik/core/thread_team.h"

namespace kvik::bench {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Median with spread, for JSON.
inline nlohmann::json summary(const std::vector<double>& values) {
  return {{"median", median(values)},
          {"min", *std::min_element(values.begin(), values.end())},
          {"max", *std::max_element(values.begin(), values.end())}};
}

// A way to stream through memory: `num_streams` stretches at once, prefetched `ahead` bytes ahead.
struct StreamPattern {
  int num_streams;
  int64_t ahead;
};

// Reads `bytes` bytes and returns something that depends on all of them.
inline uint64_t read_stream(const std::byte* data, int64_t bytes, StreamPattern pattern) {
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

// The DRAM read rate of a team over `buffer`, in GB/s: R2 of a team of two. Machines differ in the
// pattern that reads fastest, so the first use tries several and keeps the best.
class ReadRate {
 public:
  ReadRate(ThreadTeam& team, const Buffer& buffer) : team_(team), buffer_(buffer) {
    double best = 0;
    for (const StreamPattern pattern : {StreamPattern{1, 0},
                                        {1, 1024},
                                        {1, 4096},
                                        {2, 0},
                                        {2, 1024},
                                        {4, 0},
                                        {4, 1024},
                                        {8, 0},
                                        {8, 1024}}) {
      const double rate = std::max(run(pattern), run(pattern));
      if (rate <= best) continue;
      best = rate;
      pattern_ = pattern;
    }
  }

  double measure() { return run(pattern_); }
  StreamPattern pattern() const { return pattern_; }

 private:
  double run(StreamPattern pattern) {
    const double start = seconds_now();
    team_.run([&](int thread) {
      const Range share = static_share(buffer_.committed_bytes() / 4096, thread, team_.size());
      sink_ ^= read_stream(buffer_.data() + share.begin * 4096, (share.end - share.begin) * 4096,
                           pattern);
    });
    return static_cast<double>(buffer_.committed_bytes()) / (seconds_now() - start) / 1e9;
  }

  ThreadTeam& team_;
  const Buffer& buffer_;
  StreamPattern pattern_{1, 0};
  std::atomic<uint64_t> sink_{0};
};

// "--name=value" among the arguments, or `fallback`.
inline int int_option(int argc, char** argv, const std::string& name, int fallback) {
  const std::string prefix = "--" + name + "=";
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]).rfind(prefix, 0) == 0) return std::stoi(argv[i] + prefix.size());
  }
  return fallback;
}

inline std::string text_option(int argc, char** argv, const std::string& name,
                               const std::string& fallback) {
  const std::string prefix = "--" + name + "=";
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]).rfind(prefix, 0) == 0) return argv[i] + prefix.size();
  }
  return fallback;
}

}  // namespace kvik::bench
