#include "kvik/model/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <new>
#include <numeric>
#include <random>

#include "model/exact_exp.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}

// Counts every allocation of this program.
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace kvik {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Sampler make(const SamplerParams& params, int vocab_size) {
  Result<Sampler> sampler = Sampler::create(params, vocab_size);
  KVIK_CHECK(sampler.ok(), sampler.status().message().c_str());
  return std::move(sampler).value();
}

TEST(Random, GivesThePublishedNumbers) {
  // Vectors of the reference programs.
  Random random(std::array<uint64_t, 4>{1, 2, 3, 4});
  for (const uint64_t expected : {11520ULL, 0ULL, 1509978240ULL, 1215971899390074240ULL,
                                  1216172134540287360ULL, 607988272756665600ULL}) {
    EXPECT_EQ(random.next(), expected);
  }
  // splitmix64 from 1234567, then xoshiro256** computed by hand from that state.
  Random seeded(1234567);
  const uint64_t second = 3203168211198807973ULL;
  EXPECT_EQ(seeded.next(), std::rotl(second * 5, 7) * 9);
}

TEST(Random, UnitsLieInTheHalfOpenInterval) {
  Random random(9);
  double sum = 0;
  for (int i = 0; i < 100000; ++i) {
    const double unit = random.next_unit();
    ASSERT_GE(unit, 0.0);
    ASSERT_LT(unit, 1.0);
    sum += unit;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
}

TEST(ExactExp, IsWithinTwoUnitsInTheLastPlaceOfTheTrueValue) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> exponents(-708, 0);
  std::uniform_real_distribution<double> small(-1, 0);
  for (int i = 0; i < 200000; ++i) {
    const double x = i % 2 == 0 ? exponents(random) : small(random);
    const auto expected = static_cast<double>(std::exp(static_cast<long double>(x)));
    ASSERT_NEAR(internal::exact_exp(x), expected, expected * 4e-16) << x;
  }
  EXPECT_EQ(internal::exact_exp(0.0), 1.0);
  EXPECT_EQ(internal::exact_exp(-0.0), 1.0);
  EXPECT_EQ(internal::exact_exp(-709.0), 0.0);
  EXPECT_EQ(internal::exact_exp(-std::numeric_limits<double>::infinity()), 0.0);
}

TEST(Sampler, TemperatureZeroTakesTheLowestIdOfTheBest) {
  Sampler sampler = make({.temperature = 0}, 5);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 2, 3, 0}).value(), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-kInfinity, -kInfinity, -9, -kInfinity, -9}).value(),
            2);
}

TEST(Sampler, RefusesLogitsThatAreNoNumbers) {
  Sampler sampler = make({.repeat_penalty = 2, .seed = 3}, 3);
  Sampler untouched = sampler;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto message = [&](const std::vector<float>& logits) {
    const Result<TokenId> token = sampler.sample(logits);
    EXPECT_EQ(token.status().code(), StatusCode::invalid_argument);
    return token.status().message();
  };
  EXPECT_THAT(message({0, nan, 0}), HasSubstr("token 1 is NaN"));
  EXPECT_THAT(message({0, 0, kInfinity}), HasSubstr("token 2 is infinite"));
  EXPECT_THAT(message({-kInfinity, -kInfinity, -kInfinity}), HasSubstr("all logits"));
  EXPECT_THAT(message({0, 0}), HasSubstr("2 logits"));
  // Refusing used up no random number.
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(sampler.sample(std::vector<float>{0, 0, 0}).value(),
              untouched.sample(std::vector<float>{0, 0, 0}).value());
  }
}

TEST(Sampler, RefusesParametersOutOfRangeByName) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto expect = [](const SamplerParams& params, const char* name) {
    const Result<Sampler> sampler = Sampler::create(params, 10);
    EXPECT_EQ(sampler.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(sampler.status().message(), HasSubstr(name));
  };
  expect({.repeat_penalty = 0}, "repeat_penalty");
  expect({.repeat_penalty = nan}, "repeat_penalty");
  expect({.repeat_last_n = -1}, "repeat_last_n");
  expect({.repeat_penalty = 1.1F, .repeat_last_n = 0}, "repeat_last_n 0");
  expect({.top_k = 0}, "top_k");
  expect({.top_p = 0}, "top_p");
  expect({.top_p = 1.5F}, "top_p");
  expect({.top_p = nan}, "top_p");
  expect({.min_p = -0.1F}, "min_p");
  expect({.min_p = 1.1F}, "min_p");
  expect({.temperature = -1}, "temperature");
  expect({.temperature = kInfinity}, "temperature");
  EXPECT_FALSE(Sampler::create({}, 0).ok());
  EXPECT_EQ(make({}, 3).accept(3).code(), StatusCode::invalid_argument);
  EXPECT_EQ(make({}, 3).accept(-1).code(), StatusCode::invalid_argument);
}

TEST(Sampler, PenaltyMakesTokensOfTheWindowLessLikelyOnceEach) {
  Sampler sampler = make({.repeat_penalty = 2, .repeat_last_n = 3, .temperature = 0}, 3);
  const std::vector<float> logits = {4, 3, -1};
  EXPECT_EQ(sampler.sample(logits).value(), 0);
  ASSERT_TRUE(sampler.accept(0).ok());
  ASSERT_TRUE(sampler.accept(0).ok());
  EXPECT_EQ(sampler.sample(logits).value(), 1);                          // 4/2, not 4/4, against 3
  EXPECT_EQ(sampler.sample(std::vector<float>{4, 1.5, -1}).value(), 0);  // once, though twice seen
  ASSERT_TRUE(sampler.accept(1).ok());
  EXPECT_EQ(sampler.sample(logits).value(), 0);  // both halved
  // Negative logits are multiplied.
  EXPECT_EQ(sampler.sample(std::vector<float>{-1, -9, -1.5}).value(), 2);
  ASSERT_TRUE(sampler.accept(2).ok());
  ASSERT_TRUE(sampler.accept(2).ok());  // the window is now 1 2 2
  EXPECT_EQ(sampler.sample(std::vector<float>{1.1F, 2, 2}).value(), 0);
  sampler.reset();
  EXPECT_EQ(sampler.sample(logits).value(), 0);
}

TEST(Sampler, PenaltyKeepsFiniteLogitsFinite) {
  const float lowest = std::numeric_limits<float>::lowest();
  Sampler sampler = make({.repeat_penalty = 10, .top_p = 0.5F}, 2);
  ASSERT_TRUE(sampler.accept(0).ok());
  ASSERT_TRUE(sampler.accept(1).ok());
  EXPECT_TRUE(sampler.sample(std::vector<float>{lowest, lowest}).ok());
}

// How often each token comes in many draws.
std::map<TokenId, int> draw(const SamplerParams& params, const std::vector<float>& logits,
                            int draws) {
  Sampler sampler = make(params, static_cast<int>(logits.size()));
  std::map<TokenId, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.sample(logits).value()];
  return counts;
}

TEST(Sampler, DrawsEachTokenAsOftenAsItsProbability) {
  const std::vector<float> logits = {0, 1, 2, -kInfinity, -1};
  constexpr int kDraws = 200000;
  for (const float temperature : {1.0F, 0.5F, 2.0F}) {
    double total = 0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    std::map<TokenId, int> counts = draw({.temperature = temperature, .seed = 11}, logits, kDraws);
    for (size_t id = 0; id < logits.size(); ++id) {
      const double p = std::exp(logits[id] / temperature) / total;
      const double deviation = std::sqrt(kDraws * p * (1 - p));
      EXPECT_NEAR(counts[static_cast<TokenId>(id)], kDraws * p, 5 * deviation + 1e-9);
    }
  }
}

TEST(Sampler, FiltersKeepWhatTheirDefinitionsSay) {
  // Probabilities 0.4 0.3 0.2 0.1.
  const std::vector<float> logits = {std::log(0.1F), std::log(0.4F), std::log(0.2F),
                                     std::log(0.3F)};
  const auto survivors = [&](const SamplerParams& params) {
    std::vector<TokenId> ids;
    for (const auto& [id, count] : draw(params, logits, 2000)) ids.push_back(id);
    return ids;
  };
  using testing::ElementsAre;
  EXPECT_THAT(survivors({}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(survivors({.top_k = 1}), ElementsAre(1));
  EXPECT_THAT(survivors({.top_k = 2}), ElementsAre(1, 3));
  EXPECT_THAT(survivors({.top_k = 100}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(survivors({.top_p = 0.39F}), ElementsAre(1));
  EXPECT_THAT(survivors({.top_p = 0.69F}), ElementsAre(1, 3));
  EXPECT_THAT(survivors({.top_p = 0.71F}), ElementsAre(1, 2, 3));
  EXPECT_THAT(survivors({.min_p = 0.45F}), ElementsAre(1, 2, 3));
  EXPECT_THAT(survivors({.min_p = 0.55F}), ElementsAre(1, 3));
  EXPECT_THAT(survivors({.min_p = 1}), ElementsAre(1));
  // top-p sees what top-k left (0.4 and 0.3 are 4/7 and 3/7), and temperature comes last.
  EXPECT_THAT(survivors({.top_k = 2, .top_p = 0.56F}), ElementsAre(1));
  EXPECT_THAT(survivors({.top_p = 0.39F, .temperature = 100}), ElementsAre(1));
}

TEST(Sampler, BreaksTiesByTheLowerId) {
  const std::vector<float> logits(50, 1.0F);
  std::vector<TokenId> ids;
  for (const auto& [id, count] : draw({.top_k = 3}, logits, 1000)) ids.push_back(id);
  EXPECT_THAT(ids, testing::ElementsAre(0, 1, 2));
}

// The definition, with everything sorted and nothing clever.
TokenId sample_slowly(const SamplerParams& params, const std::vector<float>& logits,
                      Random& random) {
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const double largest = logits[static_cast<size_t>(ids[0])];
  const auto weight = [&](TokenId id, double temperature) {
    return internal::exact_exp((logits[static_cast<size_t>(id)] - largest) / temperature);
  };
  const auto total = [&](double temperature) {
    std::vector<TokenId> order = ids;
    if (order.size() == logits.size()) std::sort(order.begin(), order.end());
    double sum = 0;
    for (const TokenId id : order) sum += weight(id, temperature);
    return sum;
  };
  if (params.top_k) ids.resize(std::min(ids.size(), static_cast<size_t>(*params.top_k)));
  if (params.top_p < 1) {
    const double target = double{params.top_p} * total(1);
    double sum = 0;
    size_t kept = 0;
    while (kept < ids.size() && sum < target) sum += weight(ids[kept++], 1);
    ids.resize(kept);
  }
  if (params.min_p > 0) {
    while (weight(ids.back(), 1) < double{params.min_p}) ids.pop_back();
  }
  const double target = random.next_unit() * total(params.temperature);
  double sum = 0;
  for (const TokenId id : ids) {
    sum += weight(id, params.temperature);
    if (sum > target) return id;
  }
  return ids.back();
}

TEST(Sampler, AgreesWithTheDefinitionForRandomParameters) {
  std::mt19937 random(13);
  std::normal_distribution<float> normal(0, 3);
  for (int round = 0; round < 300; ++round) {
    SamplerParams params;
    if (random() % 2 == 0) params.top_k = 1 + static_cast<int>(random() % 600);
    if (random() % 2 == 0) params.top_p = static_cast<float>(1 + random() % 1000) / 1000;
    if (random() % 2 == 0) params.min_p = static_cast<float>(random() % 1000) / 20000;
    params.temperature = static_cast<float>(1 + random() % 30) / 10;
    params.seed = random();
    std::vector<float> logits(1 + random() % 3000);
    for (float& logit : logits) {
      logit = random() % 4 == 0 ? std::round(normal(random)) : normal(random);
    }
    Sampler sampler = make(params, static_cast<int>(logits.size()));
    Random numbers(params.seed);
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(sampler.sample(logits).value(), sample_slowly(params, logits, numbers));
    }
  }
}

TEST(Sampler, GivesTheSameTokensForOneSeedOnEveryMachine) {
  // From a Python program with the same definitions. A change means that stored seeds give other
  // texts.
  Sampler sampler =
      make({.top_k = 40, .top_p = 0.95F, .min_p = 0.01F, .temperature = 0.8F, .seed = 42}, 1000);
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>((i * 7919) % 1000) / 100.0F;
  }
  std::vector<TokenId> tokens;
  for (int i = 0; i < 8; ++i) tokens.push_back(sampler.sample(logits).value());
  EXPECT_THAT(tokens, testing::ElementsAre(963, 173, 704, 235, 198, 988, 346, 272));
}

TEST(Sampler, ResetAndCopyRepeatTheSameTokens) {
  Sampler sampler = make({.repeat_penalty = 1.3F, .seed = 5}, 100);
  const std::vector<float> logits(100, 0.0F);
  const auto run = [&](Sampler& s) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < 30; ++i) {
      tokens.push_back(s.sample(logits).value());
      EXPECT_TRUE(s.accept(tokens.back()).ok());
    }
    return tokens;
  };
  const std::vector<TokenId> first = run(sampler);
  Sampler copy = sampler;
  EXPECT_EQ(run(copy), run(sampler));
  sampler.reset();
  EXPECT_EQ(run(sampler), first);
}

TEST(Sampler, AllocatesNothingForAToken) {
  std::vector<float> logits(50000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 31) % 997) / 100;
  for (const SamplerParams& params :
       {SamplerParams{}, SamplerParams{.temperature = 0}, SamplerParams{.top_k = 40},
        SamplerParams{.repeat_penalty = 1.1F, .top_p = 0.9F, .min_p = 0.05F}}) {
    Sampler sampler = make(params, static_cast<int>(logits.size()));
    const int64_t before = num_allocations;
    for (int i = 0; i < 3; ++i) {
      const Result<TokenId> token = sampler.sample(logits);
      KVIK_CHECK(token.ok() && sampler.accept(token.value()).ok(), "the logits are fine");
    }
    EXPECT_EQ(num_allocations, before);
  }
}

}  // namespace
}  // namespace kvik
