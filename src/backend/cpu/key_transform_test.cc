// The seam for formats that store keys in another frame: queries are prepared once per frame.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "kvik/attention/reference.h"
#include "kvik/core/cpu_features.h"
#include "support/attention_case.h"

namespace kvik::test {
namespace {

constexpr KvShape kShape{2, 32, 32};
constexpr int kHeads = 4;
constexpr TiledOptions kOptions{.format = {KvCode::f32, KvCode::f32}};

// Keys of frame f are stored as (k - centre) * sign with sign = +-1 by frame and dim; the query
// takes the same signs, and q . centre is added. Scores are those of the plain keys up to rounding.
struct SignFrames {
  int frame;
  mutable std::atomic<int> num_prepared{0};

  float sign(int64_t frame_begin, int d) const {
    return (hash64(77, static_cast<uint64_t>(frame_begin + d)) & 1) != 0 ? 1.0f : -1.0f;
  }
  static float centre(int d) { return 0.25f * static_cast<float>(d % 5); }

  static float prepare(const void* state, int, int64_t frame_begin, const float* query,
                       float* prepared) {
    const auto& self = *static_cast<const SignFrames*>(state);
    ++self.num_prepared;
    double added = 0;
    for (int d = 0; d < kShape.head_dim_k; ++d) {
      prepared[d] = query[d] * self.sign(frame_begin, d);
      added += static_cast<double>(query[d]) * centre(d);
    }
    return static_cast<float>(added);
  }
};

SequenceRows transformed(const SequenceRows& rows, const SignFrames& frames) {
  SequenceRows out = rows;
  const auto row = static_cast<size_t>(kShape.num_kv_heads * kShape.head_dim_k);
  for (size_t i = 0; i < out.k.size(); ++i) {
    const auto position = static_cast<int64_t>(i / row);
    const int d = static_cast<int>(i % static_cast<size_t>(kShape.head_dim_k));
    const int64_t begin = frames.frame > 0 ? position / frames.frame * frames.frame : 0;
    out.k[i] = (rows.k[i] - SignFrames::centre(d)) * frames.sign(begin, d);
  }
  return out;
}

TEST(KeyTransform, ScoresEqualThoseOfPlainKeys) {
  const SequenceRows rows = random_rows(3, 900, kShape);
  Queries queries(kHeads, kShape.head_dim_k);
  queries.add(5, 3);
  const AttentionParams params{.scale = 0.18f};
  TiledKv plain(kShape, {rows}, kOptions);
  const Segment plain_segment{.view = plain.view()};
  for (const CpuIsa isa : available_cpu_isas(detect_cpu_features())) {
    Outputs expected;
    ASSERT_TRUE(
        attend(*backend_for(isa), make_call(queries, {&plain_segment, 1}, params, expected)).ok());
    for (const int frame : {0, 128, 256, 512}) {
      SignFrames frames{frame};
      const KeyTransform transform{frame, SignFrames::prepare, &frames};
      TiledKv kv(kShape, {transformed(rows, frames)}, kOptions);
      Segment segment{.view = kv.view()};
      segment.view.key_transform = &transform;
      Outputs outputs;
      const AttentionCall call = make_call(queries, {&segment, 1}, params, outputs);
      ASSERT_TRUE(attend(*backend_for(isa), call).ok());
      EXPECT_LE(max_difference(outputs.out, expected.out), 1e-5) << "frame " << frame;
      EXPECT_LE(max_difference(outputs.lse, expected.lse), 1e-5) << "frame " << frame;
      EXPECT_LE(max_difference(outputs.out, reference_attention(call)->out), 1e-5);
    }
  }
}

TEST(KeyTransform, PreparesEachQueryRowOncePerFrame) {
  SignFrames frames{256};
  const KeyTransform transform{256, SignFrames::prepare, &frames};
  TiledKv kv(kShape, {transformed(random_rows(3, 900, kShape), frames)}, kOptions);
  Segment segment{.view = kv.view()};
  segment.view.key_transform = &transform;
  Queries queries(kHeads, kShape.head_dim_k);
  queries.add(5, 3);
  Outputs outputs;
  const auto backend = make_cpu_backend({}).value();
  ASSERT_TRUE(attend(*backend, make_call(queries, {&segment, 1}, {}, outputs)).ok());
  // 900 keys lie in four frames of 256.
  EXPECT_EQ(frames.num_prepared, 3 * kHeads * 4);
}

}  // namespace
}  // namespace kvik::test
