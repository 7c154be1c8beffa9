// Many short calls by a team, and callers that meet at one back end.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "support/attention_case.h"

namespace kvik {
namespace {

using test::Outputs;

constexpr test::KvShape kShape{2, 16, 32};

// A batch whose keys span `kv_len` tokens, computed by `backend`.
class Case {
 public:
  Case(uint64_t seed, int kv_len)
      : kv_(kShape,
            {test::random_rows(seed, kv_len, kShape), test::random_rows(seed + 1, 9, kShape)}, {}) {
    queries_.add(seed, 2);
    queries_.add(seed + 1, 1);
    segment_.view = kv_.view();
  }

  Outputs run(Backend& backend) {
    Outputs outputs;
    const AttentionCall call = make_call(queries_, {&segment_, 1}, {.scale = 0.25f}, outputs);
    EXPECT_TRUE(attend(backend, call).ok());
    return outputs;
  }

 private:
  test::TiledKv kv_;
  test::Queries queries_{4, 16};
  Segment segment_;
};

TEST(CpuBackendOnThreads, ManyShortCallsByATeamOfFourGiveWhatOneThreadGives) {
  const auto one = test::backend_for(CpuIsa::scalar, 1);
  const auto four = test::backend_for(CpuIsa::scalar, 4);
  // From fewer tasks than threads to several partitions that the team merges.
  for (const int kv_len : {1, 17, 300, 1500}) {
    Case each(static_cast<uint64_t>(kv_len), kv_len);
    const Outputs expected = each.run(*one);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(each.run(*four).same_bits(expected)) << kv_len;
  }
}

TEST(CpuBackendOnThreads, CallersOfOneBackendTakeTurns) {
  const auto one = test::backend_for(CpuIsa::scalar, 1);
  const auto shared = test::backend_for(CpuIsa::scalar, 2);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&, caller] {
      Case each(10u * static_cast<uint64_t>(caller), 40 + 600 * caller);
      const Outputs expected = each.run(*one);
      for (int i = 0; i < 40; ++i) ASSERT_TRUE(each.run(*shared).same_bits(expected));
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(CpuBackendOnThreads, TwoCachesEncodeAtTheSameTime) {
  // Large enough for the team; smaller ones are encoded by the caller without waiting.
  constexpr int kTokens = 96;
  constexpr test::KvShape kWide{8, 64, 64};
  const auto shared = test::backend_for(CpuIsa::scalar, 3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 2; ++caller) {
    callers.emplace_back([&, caller] {
      const auto rows = test::random_rows(static_cast<uint64_t>(caller), kTokens, kWide);
      test::TiledKv expected(kWide, {rows}, {});
      test::SequenceRows zeros{kTokens, std::vector<float>(rows.k.size()),
                               std::vector<float>(rows.v.size())};
      test::TiledKv written(kWide, {zeros}, {});
      std::vector<int64_t> slots;
      std::vector<int32_t> positions;
      for (int i = 0; i < kTokens; ++i) {
        slots.push_back(i);
        positions.push_back(i);
      }
      const MutableKvView view = written.view();
      for (int i = 0; i < 5; ++i) {
        shared->encode(view, {rows.k.data(), DType::f32, {kTokens, 8, 64}},
                       {rows.v.data(), DType::f32, {kTokens, 8, 64}}, slots, positions);
      }
      const MutableKvView wanted = expected.view();
      EXPECT_EQ(
          std::memcmp(view.k, wanted.k, static_cast<size_t>(view.k_stride[0] * view.num_pages)), 0);
      EXPECT_EQ(
          std::memcmp(view.v, wanted.v, static_cast<size_t>(view.v_stride[0] * view.num_pages)), 0);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace kvik
