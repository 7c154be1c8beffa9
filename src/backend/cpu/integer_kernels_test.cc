// The integer kernels of packed codes (integer_body.inl.h): how far they are from those in f32,
// which must be far below what the codes themselves lose, and where they must not differ at all.
#include <gtest/gtest.h>

#include <limits>

#include "kvik/attention/reference.h"
#include "kvik/core/cpu_features.h"
#include "support/attention_case.h"

namespace kvik::test {
namespace {

const std::vector<KvCode> kCodes = {KvCode::q8,   KvCode::q6,  KvCode::q4,  KvCode::tq8,
                                    KvCode::tq4,  KvCode::tq3, KvCode::tq2, KvCode::tcq4,
                                    KvCode::tcq3, KvCode::tcq2};

double rms_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - b[i], 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

class IntegerKernels : public testing::TestWithParam<CpuIsa> {
 protected:
  // Of one sequence of `tokens`, two KV heads read by six.
  Outputs run(const KvShape& shape, const SequenceRows& rows, const Queries& queries,
              KvFormat format, KernelSet set, const AttentionParams& params,
              Poison poison = Poison::nan) {
    TiledKv kv(shape, {rows}, {.format = format, .shuffled = true, .poison = poison});
    const Segment segment{.view = kv.view()};
    Outputs outputs;
    EXPECT_TRUE(
        attend(*backend_for(GetParam(), 1, set), make_call(queries, {&segment, 1}, params, outputs))
            .ok());
    return outputs;
  }
};

// Kernel error below a tenth of the format's own, for keys and values apart, flat and peaked
// softmax.
TEST_P(IntegerKernels, LoseFarLessThanTheCodes) {
  for (const int head_dim : {64, 128, 512}) {
    const KvShape shape{2, head_dim, head_dim};
    const SequenceRows rows = random_rows(5, 300, shape);
    Queries queries(6, head_dim);
    queries.add(9, 3);
    for (const float scale : {0.5F, 2.0F}) {
      const AttentionParams params{.scale = scale / std::sqrt(static_cast<float>(head_dim))};
      const KvFormat plain = {KvCode::f32, KvCode::f32};
      const Outputs exact = run(shape, rows, queries, plain, KernelSet::exact, params);
      for (const KvCode code : kCodes) {
        for (const KvFormat format : {KvFormat{code, KvCode::f32}, KvFormat{KvCode::f32, code}}) {
          const Outputs coded = run(shape, rows, queries, format, KernelSet::exact, params);
          const Outputs fast = run(shape, rows, queries, format, KernelSet::fast, params);
          const double format_error = rms_difference(coded.out, exact.out);
          const double kernel_error = rms_difference(fast.out, coded.out);
          EXPECT_LT(kernel_error, format_error / 10)
              << kv_code_name(format.k) << ":" << kv_code_name(format.v) << ", " << head_dim;
          EXPECT_GT(kernel_error, 0) << "these are no integer kernels";
        }
      }
    }
  }
}

TEST_P(IntegerKernels, GiveTheBitsOfTheScalarOnes) {
  const KvShape shape{2, 96, 160};
  const SequenceRows rows = random_rows(6, 530, shape);
  Queries queries(6, 96);
  queries.add(10, 5);
  for (const KvCode code : kCodes) {
    const AttentionParams params{.scale = 0.2F, .window = 400, .softcap = 20.0F};
    TiledKv kv(shape, {rows}, {.format = {code, code}});
    const Segment segment{.view = kv.view()};
    Outputs expected;
    ASSERT_TRUE(attend(*backend_for(CpuIsa::scalar, 1, KernelSet::fast),
                       make_call(queries, {&segment, 1}, params, expected))
                    .ok());
    EXPECT_TRUE(
        run(shape, rows, queries, {code, code}, KernelSet::fast, params).same_bits(expected))
        << kv_code_name(code);
  }
}

TEST_P(IntegerKernels, ReadNothingOfSlotsWithoutATokenOrOutsideTheWindow) {
  const KvShape shape{1, 64, 64};
  for (const int tokens : {1, 15, 17, 63, 65}) {
    const SequenceRows rows = random_rows(7, tokens, shape);
    Queries queries(3, 64);
    queries.add(11, 1);
    for (const KvCode code : {KvCode::q8, KvCode::tq4, KvCode::tcq3}) {
      for (const std::optional<int> window : {std::optional<int>(), std::optional<int>(9)}) {
        const AttentionParams params{.scale = 0.1F, .window = window};
        const Outputs clean =
            run(shape, rows, queries, {code, code}, KernelSet::fast, params, Poison::none);
        for (const Poison poison : {Poison::nan, Poison::large}) {
          EXPECT_TRUE(run(shape, rows, queries, {code, code}, KernelSet::fast, params, poison)
                          .same_bits(clean))
              << tokens << " tokens of " << kv_code_name(code);
        }
      }
    }
  }
}

TEST_P(IntegerKernels, CarryQueriesOfAnySize) {
  const KvShape shape{1, 64, 64};
  const SequenceRows rows = random_rows(8, 40, shape);
  const KvFormat format = {KvCode::tq4, KvCode::tq4};
  for (const float size : {0.0F, 1e-42F, 1e-30F, 1e30F}) {
    Queries queries(1, 64);
    std::vector<float> values = bell(12, 64);
    for (float& x : values) x *= size;
    queries.add(values);
    // Scores of about one, as far as the scale can bring them there.
    const AttentionParams params{.scale = size > 0 ? std::min(0.1F / size, 1e30F) : 1.0F};
    const Outputs exact = run(shape, rows, queries, format, KernelSet::exact, params);
    const Outputs fast = run(shape, rows, queries, format, KernelSet::fast, params);
    EXPECT_LT(max_difference(fast.out, exact.out), 1e-3) << size;
  }
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Queries queries(1, 64);
    std::vector<float> values = bell(12, 64);
    values[17] = bad;
    queries.add(values);
    for (const float x : run(shape, rows, queries, format, KernelSet::fast, {.scale = 0.1F}).out) {
      EXPECT_TRUE(std::isnan(x));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, IntegerKernels,
                         testing::ValuesIn(available_cpu_isas(detect_cpu_features())),
                         [](const auto& test) { return std::string(cpu_isa_name(test.param)); });

}  // namespace
}  // namespace kvik::test
