#include "kvik/core/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace kvik {
namespace {

// About 20 microseconds: longer than the gap between two layers, shorter than a time slice.
constexpr int kSpins = 2000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Waits until `value` differs from `old`.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, bool may_spin) {
  for (int i = 0; may_spin && i < kSpins; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    pause_briefly();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

bool pin_thread(pthread_t thread, int nth_processor) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || nth_processor-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return pthread_setaffinity_np(thread, sizeof one, &one) == 0;
  }
  return false;
}

}  // namespace

struct ThreadTeam::State {
  std::atomic<uint32_t> epoch{0};    // a new value starts a region
  std::atomic<uint32_t> pending{0};  // workers still inside the region
  Task task = nullptr;               // written before epoch, read after it
  void* context = nullptr;
  bool stopping = false;
  // Spinning helps only while each thread has a processor of its own.
  bool may_spin = true;
  std::vector<std::thread> workers;

  void work(int thread_idx) {
    uint32_t seen = 0;
    for (;;) {
      seen = wait_for_change(epoch, seen, may_spin);
      if (stopping) return;
      task(context, thread_idx);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
    }
  }

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    stopping = true;
    epoch.fetch_add(1, std::memory_order_release);
    epoch.notify_all();
    for (std::thread& worker : workers) worker.join();
  }
};

Result<ThreadTeam> ThreadTeam::create(int num_threads) {
  const std::string count = std::to_string(num_threads);
  if (num_threads < 1)
    return invalid_argument("num_threads is " + count + "; it must be 1 or more");
  auto state = std::make_unique<State>();
  state->may_spin = num_threads <= num_usable_processors();
  std::string reason;
  try {
    // First, so that a started thread always has a place to be joined from.
    state->workers.reserve(static_cast<size_t>(num_threads) - 1);
    for (int i = 1; i < num_threads; ++i) {
      state->workers.emplace_back(&State::work, state.get(), i);
    }
    return ThreadTeam(std::move(state));
  } catch (const std::system_error& error) {
    reason = error.code().message();
  } catch (const std::bad_alloc&) {
    reason = "no memory";
  }
  const std::string started = std::to_string(state->workers.size() + 1);
  return Status(StatusCode::out_of_memory, "num_threads is " + count + "; the system gave " +
                                               started + " and refused the next (" + reason +
                                               "). Ask for fewer threads or raise its limits");
}

ThreadTeam::ThreadTeam(std::unique_ptr<State> state) : state_(std::move(state)) {}
ThreadTeam::ThreadTeam(ThreadTeam&&) noexcept = default;
ThreadTeam& ThreadTeam::operator=(ThreadTeam&&) noexcept = default;
ThreadTeam::~ThreadTeam() = default;

int ThreadTeam::size() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadTeam::run_erased(Task task, void* context) {
  State& state = *state_;
  if (state.workers.empty()) {
    task(context, 0);
    return;
  }
  state.task = task;
  state.context = context;
  state.pending.store(static_cast<uint32_t>(state.workers.size()), std::memory_order_relaxed);
  state.epoch.fetch_add(1, std::memory_order_release);
  state.epoch.notify_all();
  task(context, 0);
  for (uint32_t left = state.pending.load(std::memory_order_acquire); left != 0;) {
    left = wait_for_change(state.pending, left, state.may_spin);
  }
}

bool ThreadTeam::pin() {
  if (size() > num_usable_processors()) return false;
  bool pinned = true;
  for (size_t i = 0; i < state_->workers.size(); ++i) {
    pinned &= pin_thread(state_->workers[i].native_handle(), static_cast<int>(i) + 1);
  }
  // The caller last: its own mask decides what "the i-th processor" means for the others.
  return pin_thread(pthread_self(), 0) && pinned;
}

int num_usable_processors() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  const int count = CPU_COUNT(&allowed);
  return count > 0 ? count : 1;
}

}  // namespace kvik
