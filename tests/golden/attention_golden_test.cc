// Every case of tests/golden/attention, on every instruction set of this machine, from tiles in
// shuffled pages and from row-major arrays, within the tolerances that the data states.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kvik/attention/reference.h"
#include "kvik/core/cpu_features.h"
#include "support/attention_case.h"

namespace kvik::test {
namespace {

using nlohmann::json;

const std::string kFolder = KVIK_GOLDEN_DIR "/attention/";

const json& manifest() {
  static const json kManifest = json::parse(std::ifstream(kFolder + "manifest.json"));
  return kManifest;
}

std::vector<float> stored(const json& ref) {
  std::ifstream file(kFolder + ref["file"].get<std::string>(), std::ios::binary);
  std::vector<float> values(ref["nbytes"].get<size_t>() / 4);
  file.seekg(ref["offset"].get<int64_t>());
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * 4));
  EXPECT_TRUE(file.good());
  return values;
}

float round_to(float x, DType dtype) {
  if (dtype == DType::f16) return f16_to_f32(f32_to_f16(x));
  if (dtype == DType::bf16) return bf16_to_f32(f32_to_bf16(x));
  return x;
}

DType dtype_of(const json& c) {
  const auto name = c["dtype"].get<std::string>();
  return name == "f16" ? DType::f16 : name == "bf16" ? DType::bf16 : DType::f32;
}

// Inputs and call parameters of a case, rebuilt from its seed.
struct Case {
  KvShape shape;
  Queries queries;
  std::vector<SequenceRows> sequences;
  AttentionParams params;
  std::vector<float> sinks;
  DType dtype;

  explicit Case(const json& c)
      : shape{c["heads"][1], c["D"], c["Dv"]}, queries(c["heads"][0], c["D"]), dtype(dtype_of(c)) {
    params.scale = c["scale"];
    if (c["window"].get<int>() >= 0) params.window = c["window"].get<int>();
    params.softcap = c["softcap"];
    if (c.contains("sink_values")) {
      for (const json& sink : c["sink_values"]) sinks.push_back(sink);
    }
    for (size_t b = 0; b < c["seqs"].size(); ++b) add_sequence(c, b);
  }

 private:
  void add_sequence(const json& c, size_t b) {
    const int q_len = c["seqs"][b][0];
    const int kv_len = c["seqs"][b][1];
    const uint64_t seed = c["seed"].get<uint64_t>() * 100 + 3 * b;
    const int64_t rows = int64_t{kv_len} * shape.num_kv_heads;
    std::vector<float> q = bell(seed, int64_t{q_len} * queries.num_heads * shape.head_dim_k);
    SequenceRows kv{kv_len, bell(seed + 1, rows * shape.head_dim_k),
                    bell(seed + 2, rows * shape.head_dim_v)};
    for (float& x : q) x *= std::exp2(static_cast<float>(c.value("q_exp", 0)));
    for (float& x : kv.k) x *= std::exp2(static_cast<float>(c.value("k_exp", 0)));
    if (c.contains("shift")) shift(c["shift"], q, kv);
    for (float& x : q) x = round_to(x, dtype);
    for (float& x : kv.k) x = round_to(x, dtype);
    for (float& x : kv.v) x = round_to(x, dtype);
    if (c.value("tail_inf", false)) {
      const auto row = static_cast<size_t>(shape.num_kv_heads * shape.head_dim_v);
      std::fill(kv.v.end() - static_cast<int64_t>(row), kv.v.end(), INFINITY);
    }
    if (b == 0 && !c["probe"].empty()) {
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(q[i], c["probe"]["q"][i].get<float>());
        EXPECT_EQ(kv.k[i], c["probe"]["k"][i].get<float>());
        EXPECT_EQ(kv.v[i], c["probe"]["v"][i].get<float>());
      }
    }
    queries.add(q);
    sequences.push_back(std::move(kv));
  }

  void shift(const json& how, std::vector<float>& q, SequenceRows& kv) const {
    const auto dim = static_cast<size_t>(shape.head_dim_k);
    for (size_t i = 0; i < q.size(); i += dim) q[i] = 32;
    for (int t = 0; t < kv.kv_len; ++t) {
      const double want = how.is_string() ? -50 - 50 * (t % 7) / 6.0 : how.get<double>();
      const auto key = static_cast<float>(std::nearbyint(want * std::sqrt(shape.head_dim_k) / 32));
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        kv.k[static_cast<size_t>(t * shape.num_kv_heads + h) * dim] = key;
      }
    }
  }
};

// Largest difference from the stored rows of out, and of the two log-sum-exps.
struct Errors {
  double out = 0, lse = 0;
};

template <class T>
Errors compare(const json& c, const Case& built, const std::vector<T>& out,
               const std::vector<T>& lse, const std::vector<T>& lse_keys) {
  std::vector<T> got_out, got_lse, got_keys;
  for (const json& row : c["rows"]) {
    const int64_t query = built.queries.indptr[row[0].get<size_t>()] + row[2].get<int>();
    const int64_t at = query * built.queries.num_heads + row[1].get<int>();
    const auto begin = out.begin() + at * built.shape.head_dim_v;
    got_out.insert(got_out.end(), begin, begin + built.shape.head_dim_v);
    got_lse.push_back(lse[static_cast<size_t>(at)]);
    got_keys.push_back(lse_keys[static_cast<size_t>(at)]);
  }
  return {max_difference(got_out, stored(c["out"])),
          std::max(max_difference(got_lse, stored(c["lse"])),
                   max_difference(got_keys, stored(c["lse_keys"])))};
}

void expect_within(const json& c, const std::string& what, const Errors& errors) {
  EXPECT_LE(errors.out, c["tol"]["out"].get<double>()) << c["id"] << " " << what;
  EXPECT_LE(errors.lse, c["tol"]["lse"].get<double>()) << c["id"] << " " << what;
}

class GoldenAttention : public testing::TestWithParam<int> {
 protected:
  const json& c_ = manifest()["cases"][static_cast<size_t>(GetParam())];
  Case case_{c_};
};

TEST_P(GoldenAttention, TiledKernelsStayWithinTolerance) {
  case_.params.sinks = case_.sinks;
  TiledOptions options;
  options.format = {kv_code_of(case_.dtype), kv_code_of(case_.dtype)};
  options.shuffled = true;
  TiledKv kv(case_.shape, case_.sequences, options);
  const Segment segment{.view = kv.view()};
  for (const CpuIsa isa : available_cpu_isas(detect_cpu_features())) {
    Outputs outputs;
    const AttentionCall call = make_call(case_.queries, {&segment, 1}, case_.params, outputs);
    ASSERT_TRUE(attend(*backend_for(isa), call).ok());
    expect_within(c_, std::string(cpu_isa_name(isa)),
                  compare(c_, case_, outputs.out, outputs.lse, outputs.lse_keys));
  }
}

TEST_P(GoldenAttention, RowMajorArraysGiveTheBitsOfTheTiles) {
  case_.params.sinks = case_.sinks;
  TiledOptions options;
  options.format = {KvCode::f32, KvCode::f32};
  TiledKv kv(case_.shape, case_.sequences, options);
  std::vector<float> k, v;
  std::vector<int32_t> indptr{0}, kv_len, first_pos;
  for (const SequenceRows& rows : case_.sequences) {
    k.insert(k.end(), rows.k.begin(), rows.k.end());
    v.insert(v.end(), rows.v.begin(), rows.v.end());
    indptr.push_back(indptr.back() + rows.kv_len);
    kv_len.push_back(rows.kv_len);
    first_pos.push_back(0);
  }
  const int64_t heads = case_.shape.num_kv_heads;
  const Result<KvView> view = rows_view(
      ConstTensorView(k.data(), DType::f32, {indptr.back(), heads, case_.shape.head_dim_k}),
      ConstTensorView(v.data(), DType::f32, {indptr.back(), heads, case_.shape.head_dim_v}), indptr,
      kv_len, first_pos);
  ASSERT_TRUE(view.ok());
  const Segment tiles{.view = kv.view()};
  const Segment rows{.view = view.value()};
  const auto backend = make_cpu_backend({.kernel_set = KernelSet::exact}).value();
  Outputs from_tiles, from_rows;
  ASSERT_TRUE(
      attend(*backend, make_call(case_.queries, {&tiles, 1}, case_.params, from_tiles)).ok());
  ASSERT_TRUE(attend(*backend, make_call(case_.queries, {&rows, 1}, case_.params, from_rows)).ok());
  EXPECT_TRUE(from_tiles.same_bits(from_rows)) << c_["id"];
}

// Kernel error and format error are apart: attention on codes is attention on the rows that the
// codes stand for.
TEST_P(GoldenAttention, KernelsOnCodesEqualAttentionOnDecodedRows) {
  case_.params.sinks = case_.sinks;
  for (const SequenceRows& rows : case_.sequences) {
    for (const float x : rows.v) {
      if (!std::isfinite(x)) return;  // no packed format stores it
    }
  }
  for (const KvFormat format : {KvFormat{KvCode::q8, KvCode::q8},
                                {KvCode::q4, KvCode::q6},
                                {KvCode::tqk_q4_0, KvCode::tqv_q4_0},
                                {KvCode::tq8, KvCode::tq4},
                                {KvCode::tcq4, KvCode::tcq3}}) {
    if (!check_keys(format.k, case_.shape.head_dim_k).ok() ||
        !check_values(format.v, case_.shape.head_dim_v).ok()) {
      continue;
    }
    TiledOptions options;
    options.format = format;
    options.shuffled = true;
    TiledKv packed(case_.shape, case_.sequences, options);
    const Segment segment{.view = packed.view()};
    Outputs outputs;
    const AttentionCall call = make_call(case_.queries, {&segment, 1}, case_.params, outputs);
    const ReferenceResult reference = reference_attention(call).value();
    ASSERT_TRUE(attend(*make_cpu_backend({.kernel_set = KernelSet::exact}).value(), call).ok());
    const std::string name =
        std::string(kv_code_name(format.k)) + ":" + std::string(kv_code_name(format.v));
    EXPECT_LE(max_difference(outputs.out, reference.out), c_["tol"]["out"].get<double>())
        << c_["id"] << " " << name;
    EXPECT_LE(max_difference(outputs.lse, reference.lse), c_["tol"]["lse"].get<double>())
        << c_["id"] << " " << name;
  }
}

TEST_P(GoldenAttention, ReferenceAgreesToRounding) {
  case_.params.sinks = case_.sinks;
  TiledOptions options;
  options.format = {kv_code_of(case_.dtype), kv_code_of(case_.dtype)};
  TiledKv kv(case_.shape, case_.sequences, options);
  const Segment segment{.view = kv.view()};
  Outputs outputs;
  const AttentionCall call = make_call(case_.queries, {&segment, 1}, case_.params, outputs);
  const ReferenceResult result = reference_attention(call).value();
  const Errors errors = compare(c_, case_, result.out, result.lse, result.lse_keys);
  // The data holds float64 results rounded to f32.
  EXPECT_LE(errors.out, 4e-7);
  // A log-sum-exp is at most the largest logit plus log(1025) keys.
  EXPECT_LE(errors.lse, 6.1e-8 * (7 + c_["max_abs_logit"].get<double>()));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, GoldenAttention, testing::Range(0, static_cast<int>(manifest()["cases"].size())),
    [](const auto& test) {
      return manifest()["cases"][static_cast<size_t>(test.param)]["id"].template get<std::string>();
    });

TEST(GoldenAttention, HasAllCases) { EXPECT_EQ(manifest()["cases"].size(), 58u); }

}  // namespace
}  // namespace kvik::test
