// Many requests one after the other over one set of caches.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "kvik/cache/cache_set.h"
#include "support/attention_case.h"

namespace kvik {
namespace {

constexpr int kHeadDim = 32;
constexpr int kLayers = 2;

class Slots {
 public:
  Slots() {
    PagedCacheOptions options;
    options.spec = {1, kHeadDim, kHeadDim,
                    std::vector<KvFormat>(kLayers, {KvCode::tcq4, KvCode::q4})};
    options.max_blocks = 40;
    options.exact_first = 4;
    options.exact_recent = 10;
    PagedCacheOptions window = options;
    window.window = 50;
    window.rollback_slack = 8;
    const PagedCacheOptions both[] = {options, window};
    set_.emplace(CacheSet::create(both, make_cpu_backend({}).value()).value());
  }

  CacheSet& set() { return *set_; }

  // A step of `count` tokens; cancelled before its end, or with a row that is refused.
  enum class End : uint8_t { committed, dropped, refused };
  Status step(Sequence& sequence, int count, End end) {
    const AppendRequest request{&sequence, count};
    Result<SetPlan> plan = set_->reserve({&request, 1});
    if (!plan.ok()) return plan.status();
    std::vector<float> rows = test::bell(++seed_, int64_t{count} * kHeadDim);
    if (end == End::refused) rows.back() = NAN;
    const ConstTensorView view(rows.data(), DType::f32, {count, 1, kHeadDim});
    for (int cache = 0; cache < 2; ++cache) {
      for (int layer = 0; layer < kLayers; ++layer) {
        set_->write(*plan, cache, layer, view, view);
        if (end == End::dropped) return {};
      }
    }
    return set_->commit(std::move(plan).value());
  }

  int64_t used_blocks() {
    int64_t used = 0;
    for (int i = 0; i < 2; ++i) used += set_->cache(i).stats().used_blocks;
    return used;
  }

 private:
  std::optional<CacheSet> set_;
  uint64_t seed_ = 0;
};

TEST(LongUse, ThreeHundredRequestsOverFourSlotsLeaveNoPage) {
  Slots slots;
  std::vector<Sequence> alive(4);
  int64_t committed_once = 0;
  int refused = 0;
  uint64_t state = 1;
  const auto draw = [&state](uint64_t below) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int>((state >> 33) % below);
  };
  for (int request = 0; request < 300; ++request) {
    Sequence& slot = alive[static_cast<size_t>(draw(4))];
    // A new request takes the slot, some as a fork of what is there.
    if (slot.id() != 0 && draw(4) == 0) {
      slot = slots.set().fork(slot).value();
    } else {
      slot = slots.set().new_sequence();
    }
    const int before = slot.num_cached();
    EXPECT_TRUE(slots.step(slot, 1 + draw(30), Slots::End::dropped).ok());
    EXPECT_EQ(slots.step(slot, 1 + draw(30), Slots::End::refused).code(),
              StatusCode::invalid_argument);
    EXPECT_EQ(slot.num_cached(), before);
    for (int i = 0; i < 6; ++i) {
      const Status status = slots.step(slot, i == 0 ? 1 + draw(60) : 1, Slots::End::committed);
      if (status.code() == StatusCode::out_of_pages) {
        ++refused;
        break;
      }
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    if (slot.num_cached() > 5 && draw(3) == 0) {
      ASSERT_TRUE(slots.set().truncate(slot, slot.num_cached() - 1 - draw(4)).ok());
    }
    int64_t committed = 0;
    for (int i = 0; i < 2; ++i) committed += slots.set().stats(i).committed_bytes;
    if (request == 150) committed_once = committed;
    if (request > 150) {
      EXPECT_EQ(committed, committed_once) << request;
    }
  }
  EXPECT_GT(slots.used_blocks(), 0);
  for (Sequence& slot : alive) slot = Sequence();
  EXPECT_EQ(slots.used_blocks(), 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(slots.set().stats(i).shared_blocks, 0);
  // All of the room is there again: one sequence fills the cache to its limit.
  Sequence last = slots.set().new_sequence();
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(slots.step(last, 16, Slots::End::committed).ok()) << i;
  }
  EXPECT_EQ(slots.step(last, 1, Slots::End::committed).code(), StatusCode::out_of_pages);
}

}  // namespace
}  // namespace kvik
