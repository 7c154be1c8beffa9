#include "kvik/core/thread_team.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace kvik {
namespace {

ThreadTeam team_of(int num_threads) { return ThreadTeam::create(num_threads).value(); }

TEST(ThreadTeam, CallsEachIndexOnceInEveryOneOfManyRegions) {
  for (int size = 1; size <= 8; ++size) {
    ThreadTeam team = team_of(size);
    ASSERT_EQ(team.size(), size);
    std::vector<int> calls(static_cast<size_t>(size));  // plain: each index has one writer
    constexpr int kRegions = 300;
    for (int region = 1; region <= kRegions; ++region) {
      team.run([&](int i) { ++calls[static_cast<size_t>(i)]; });
      for (const int count : calls) ASSERT_EQ(count, region) << "size " << size;
    }
  }
}

TEST(ThreadTeam, RunsIndexZeroOnTheCallerAndEveryOtherOnAThreadOfItsOwn) {
  ThreadTeam team = team_of(4);
  std::vector<std::thread::id> first(4);
  std::vector<std::thread::id> second(4);
  team.run([&](int i) { first[static_cast<size_t>(i)] = std::this_thread::get_id(); });
  team.run([&](int i) { second[static_cast<size_t>(i)] = std::this_thread::get_id(); });
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(first.begin(), first.end()).size(), 4u);
  EXPECT_EQ(first, second);
}

TEST(ThreadTeam, AllIndicesAreInsideARegionAtTheSameTime) {
  ThreadTeam team = team_of(6);
  for (int region = 0; region < 20; ++region) {
    std::atomic<int> inside{0};
    // Ends only when all six have arrived: a team that ran them one after another would hang.
    team.run([&](int) {
      ++inside;
      while (inside.load() < 6) std::this_thread::yield();
    });
    EXPECT_EQ(inside.load(), 6);
  }
}

TEST(ThreadTeam, WritesOfOneRegionAreSeenByAllThreadsOfTheNext) {
  ThreadTeam team = team_of(5);
  std::vector<int> values(5, 1);
  for (int region = 0; region < 12; ++region) {
    std::vector<int> sums(5);
    team.run([&](int i) {
      sums[static_cast<size_t>(i)] = std::accumulate(values.begin(), values.end(), 0);
    });
    team.run([&](int i) { values[static_cast<size_t>(i)] = sums[static_cast<size_t>(i)] % 1000; });
    for (const int sum : sums) ASSERT_EQ(sum, sums[0]);
  }
}

TEST(ThreadTeam, WorksWithMoreThreadsThanProcessors) {
  const int size = 4 * num_usable_processors() + 3;
  ThreadTeam team = team_of(size);
  std::atomic<int64_t> sum{0};
  for (int region = 0; region < 50; ++region) team.run([&](int i) { sum += i; });
  EXPECT_EQ(sum.load(), int64_t{50} * size * (size - 1) / 2);
}

TEST(ThreadTeam, WakesWorkersThatHaveGoneToSleep) {
  ThreadTeam team = team_of(3);
  std::atomic<int> calls{0};
  for (int region = 0; region < 5; ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far longer than they spin
    team.run([&](int) { ++calls; });
  }
  EXPECT_EQ(calls.load(), 15);
}

TEST(ThreadTeam, WaitsForTheSlowestIndexWhicheverItIs) {
  ThreadTeam team = team_of(3);
  for (int slow = 0; slow < 3; ++slow) {
    std::vector<int> done(3);
    team.run([&](int i) {
      if (i == slow) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      done[static_cast<size_t>(i)] = 1;
    });
    EXPECT_EQ(done, (std::vector<int>{1, 1, 1}));
  }
}

TEST(ThreadTeam, StartsAndStopsManyTimesUsedOrNot) {
  for (int i = 0; i < 200; ++i) {
    const ThreadTeam unused = team_of(1 + i % 5);
    ThreadTeam team = team_of(1 + i % 5);
    if (i % 3 == 0) continue;  // stopped before its workers ever saw a region
    std::atomic<int> calls{0};
    team.run([&](int) { ++calls; });
    ASSERT_EQ(calls.load(), team.size());
  }
}

TEST(ThreadTeam, TeamsOfDifferentThreadsAreIndependent) {
  std::vector<std::thread> callers;
  std::vector<int> totals(3);
  for (int& total : totals) {
    callers.emplace_back([&total] {
      ThreadTeam team = team_of(3);
      std::vector<int> calls(3);
      for (int region = 0; region < 200; ++region) {
        team.run([&](int i) { ++calls[static_cast<size_t>(i)]; });
      }
      total = std::accumulate(calls.begin(), calls.end(), 0);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(totals, (std::vector<int>{600, 600, 600}));
}

TEST(ThreadTeam, TakesAConstFunctionAndOneThatCannotBeCopied) {
  ThreadTeam team = team_of(2);
  std::atomic<int> calls{0};
  const auto constant = [&](int) { ++calls; };
  team.run(constant);
  auto owner = std::make_unique<int>(1);
  team.run([&, owner = std::move(owner)](int) { calls += *owner; });
  EXPECT_EQ(calls.load(), 4);
}

TEST(ThreadTeam, PinsEachThreadToAProcessorOfItsOwnOrNoneAtAll) {
  // On a thread of its own: a pin of the calling thread would outlive the test.
  std::thread([] {
    cpu_set_t before;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    const int processors = num_usable_processors();
    ThreadTeam too_many = team_of(processors + 1);
    EXPECT_FALSE(too_many.pin());
    EXPECT_EQ(num_usable_processors(), processors);

    ThreadTeam team = team_of(processors);
    if (!team.pin()) GTEST_SKIP() << "the system refuses to pin";
    std::vector<int> width(static_cast<size_t>(processors));
    std::vector<int> cpu(static_cast<size_t>(processors));
    team.run([&](int i) {
      width[static_cast<size_t>(i)] = num_usable_processors();
      cpu[static_cast<size_t>(i)] = sched_getcpu();
    });
    EXPECT_EQ(width, std::vector<int>(static_cast<size_t>(processors), 1));
    EXPECT_EQ(std::set<int>(cpu.begin(), cpu.end()).size(), static_cast<size_t>(processors));
    for (const int c : cpu) EXPECT_TRUE(CPU_ISSET(c, &before));
  }).join();
}

TEST(ThreadTeam, WorksAfterItMoved) {
  ThreadTeam first = team_of(3);
  ThreadTeam second = std::move(first);
  std::atomic<int> calls{0};
  second.run([&](int) { ++calls; });
  second = team_of(2);  // stops the three
  second.run([&](int) { ++calls; });
  EXPECT_EQ(calls.load(), 5);
}

TEST(ThreadTeam, NeedsAThread) {
  EXPECT_EQ(ThreadTeam::create(0).status().code(), StatusCode::invalid_argument);
}

// Threads of this process, by the system's own count.
int num_tasks() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// In a child process that may have four threads: 0 if create() says so and leaves none behind.
[[noreturn]] void create_under_a_limit() {
  // Root is exempt from the limit, so leave root.
  if (geteuid() == 0 && setuid(54321) != 0) std::_Exit(77);
  const rlimit limit = {4, 4};
  if (setrlimit(RLIMIT_NPROC, &limit) != 0) std::_Exit(77);
  std::thread([] {}).join();  // ThreadSanitizer starts a thread of its own with the first
  const int before = num_tasks();
  for (int i = 0; i < 3; ++i) {  // threads left over from one try would show in the next
    const Status status = ThreadTeam::create(64).status();
    if (status.code() != StatusCode::out_of_memory) std::_Exit(1);
    if (status.message().find("num_threads is 64") == std::string::npos) std::_Exit(2);
  }
  // A joined thread may be listed for a moment more.
  for (int i = 0; i < 500 && num_tasks() != before; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::_Exit(num_tasks() == before ? 0 : 3);
}

TEST(ThreadTeam, SaysWhenTheSystemRefusesAThreadAndLeavesNoneBehind) {
  const pid_t child = fork();
  if (child == 0) create_under_a_limit();
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  ASSERT_TRUE(WIFEXITED(state)) << "the child was ended by signal " << WTERMSIG(state);
  if (WEXITSTATUS(state) == 77) GTEST_SKIP() << "no limit can be set here";
  EXPECT_EQ(WEXITSTATUS(state), 0);
}

TEST(StaticShare, CoversEveryItemOnceInOrderWithSizesThatDifferByAtMostOne) {
  for (int64_t items = 0; items < 70; ++items) {
    for (int parts = 1; parts <= 9; ++parts) {
      int64_t next = 0;
      for (int part = 0; part < parts; ++part) {
        const Range share = static_share(items, part, parts);
        ASSERT_EQ(share.begin, next);
        ASSERT_GE(share.end - share.begin, items / parts);
        ASSERT_LE(share.end - share.begin, (items + parts - 1) / parts);
        next = share.end;
      }
      ASSERT_EQ(next, items);
    }
  }
}

}  // namespace
}  // namespace kvik
