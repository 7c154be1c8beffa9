// A fixed team of threads for short parallel regions whose result must not depend on the team.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// run(f) calls f(0) .. f(size-1), each exactly once and at the same time, f(0) on the calling
// thread; it returns when all are done. How work is split over the indices is the caller's static
// choice, so a result never depends on timing. Workers spin briefly for the next region, then
// sleep. f must not throw. A region allocates nothing. Threads: one run() at a time (a second
// caller must wait outside); run() must not be called from inside a region. Move-only; only
// destruction and assignment are allowed on a team that was moved from.
class KVIK_API ThreadTeam {
 public:
  // The calling thread plus num_threads - 1 workers. Errors: invalid_argument for a count below 1;
  // out_of_memory when the system refuses a thread (no thread is then left over).
  static Result<ThreadTeam> create(int num_threads);
  ThreadTeam(ThreadTeam&&) noexcept;
  ThreadTeam& operator=(ThreadTeam&&) noexcept;
  ~ThreadTeam();

  int size() const;

  template <class Function>
  void run(Function&& function) {
    using F = std::remove_reference_t<Function>;
    run_erased([](void* f, int thread_idx) { (*static_cast<F*>(f))(thread_idx); },
               const_cast<std::remove_const_t<F>*>(&function));
  }

  // Pins thread i to the i-th processor this process may use; for benchmarks. False when the system
  // refuses or there are fewer processors than threads; then nothing is pinned.
  bool pin();

 private:
  using Task = void (*)(void* context, int thread_idx);
  void run_erased(Task task, void* context);

  struct State;
  explicit ThreadTeam(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Processors that this process may run on (its affinity mask), at least 1.
KVIK_API int num_usable_processors();

// The half-open share of [0, num_items) that member `part` of `num_parts` takes: contiguous, in
// order, sizes differing by at most one.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};
constexpr Range static_share(int64_t num_items, int part, int num_parts) {
  const int64_t base = num_items / num_parts;
  const int64_t extra = num_items % num_parts;
  const int64_t begin = part * base + (part < extra ? part : extra);
  return {begin, begin + base + (part < extra ? 1 : 0)};
}

}  // namespace kvik
