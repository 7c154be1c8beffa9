#include "kvik/format/key_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "format/hadamard.h"
#include "kvik/format/row_codec.h"
#include "support/random.h"

namespace kvik {
namespace {

using testing::HasSubstr;
using Row = std::vector<float>;

// RoPE of one row, in double, from its definition.
Row turned(const Row& row, double positions, const std::vector<double>& frequencies,
           KeyPairs pairs) {
  Row out = row;
  for (size_t p = 0; p < frequencies.size(); ++p) {
    const size_t i = pairs == KeyPairs::halves ? p : 2 * p;
    const size_t j = pairs == KeyPairs::halves ? p + frequencies.size() : 2 * p + 1;
    const double angle = positions * frequencies[p];
    out[i] = static_cast<float>(row[i] * std::cos(angle) - row[j] * std::sin(angle));
    out[j] = static_cast<float>(row[i] * std::sin(angle) + row[j] * std::cos(angle));
  }
  return out;
}

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += double{a[d]} * b[d];
  return sum;
}

// A transform far from neutral; with `num_pairs` below head_dim / 2 some dims do not turn.
struct Calibrated {
  std::vector<double> frequencies;
  Row centre, diagonal;
  KeyFrame frame;

  Calibrated(int head_dim, size_t num_pairs, int tokens, KeyPairs pairs)
      : centre(test::bell(3, head_dim)), diagonal(test::bell(4, head_dim)) {
    for (size_t p = 0; p < num_pairs; ++p) {
      frequencies.push_back(
          std::pow(1e4, -static_cast<double>(p) / static_cast<double>(num_pairs)));
    }
    for (float& a : diagonal) a = std::exp2(a * 0.4f);
    frame = {.frame = tokens,
             .pairs = pairs,
             .frequencies = frequencies,
             .centre = centre,
             .diagonal = diagonal};
  }
  // A moved vector keeps its memory, so the spans stay good; a copy's would not.
  Calibrated(Calibrated&&) = default;
};

const std::vector<Calibrated>& transforms() {
  static const std::vector<Calibrated> kTransforms = [] {
    std::vector<Calibrated> all;
    for (const KeyPairs pairs : {KeyPairs::neighbours, KeyPairs::halves}) {
      for (const int tokens : {128, 256, 512}) {
        all.emplace_back(64, 32, tokens, pairs);
        all.emplace_back(96, 24, tokens, pairs);
        all.emplace_back(256, 128, tokens, pairs);
      }
    }
    return all;
  }();
  return kTransforms;
}

size_t head_dim_of(const Calibrated& c) { return c.centre.size(); }

TEST(KeyFrame, ScoresWithoutCodesEqualPlainScoresNearAndFar) {
  for (const Calibrated& c : transforms()) {
    const size_t dim = head_dim_of(c);
    ASSERT_TRUE(check(c.frame, static_cast<int>(dim)).ok());
    for (const int64_t position : {0, 127, 128, 16461, 100000}) {
      const Row key = test::bell(static_cast<uint64_t>(position), static_cast<int64_t>(dim));
      const Row query = test::bell(static_cast<uint64_t>(position) + 9, static_cast<int64_t>(dim));
      Row row(dim), prepared(dim);
      frame_key(c.frame, position, key, row);
      internal::rotate(row.data(), static_cast<int>(dim));
      const float added = prepare_query(c.frame, frame_begin(c.frame, position), query, prepared);
      const double lengths = std::sqrt(dot(row, row) * dot(prepared, prepared));
      EXPECT_NEAR(dot(prepared, row) + added, dot(query, key), 1e-6 * lengths)
          << dim << " at " << position;
    }
  }
}

TEST(KeyFrame, UnframedRowsAreTheKeys) {
  for (const Calibrated& c : transforms()) {
    const size_t dim = head_dim_of(c);
    for (const int64_t position : {0, 511, 100000}) {
      const Row key = test::bell(static_cast<uint64_t>(position) + 2, static_cast<int64_t>(dim));
      Row row = key;
      frame_key(c.frame, position, row, row);  // in place
      unframe_key(c.frame, position, row, row);
      for (size_t d = 0; d < dim; ++d) EXPECT_NEAR(row[d], key[d], 4e-6) << position;
    }
  }
}

// Moving a sequence by whole frames turns its keys and leaves the stored rows as they are.
TEST(KeyFrame, StoredRowsDependOnThePlaceInTheFrameAlone) {
  for (const Calibrated& c : transforms()) {
    const size_t dim = head_dim_of(c);
    const Row before_rope = test::bell(77, static_cast<int64_t>(dim));
    Row first(dim), moved(dim);
    const auto key_at = [&](int64_t position) {
      return turned(before_rope, static_cast<double>(position), c.frequencies, c.frame.pairs);
    };
    frame_key(c.frame, 100, key_at(100), first);
    frame_key(c.frame, 100 + 37 * 512, key_at(100 + 37 * 512), moved);
    for (size_t d = 0; d < dim; ++d) EXPECT_NEAR(moved[d], first[d], 1e-5);
  }
}

TEST(KeyFrame, PositionsMayCountFromAFrameFarAway) {
  for (const Calibrated& each : transforms()) {
    KeyFrame late = each.frame;
    late.first_position = 16384;
    const size_t head_dim = each.centre.size();
    const Row key = test::bell(8, static_cast<int>(head_dim));
    Row row(head_dim), late_row(head_dim), query(head_dim), late_query(head_dim);
    frame_key(each.frame, 16384 + 700, key, row);
    frame_key(late, 700, key, late_row);
    EXPECT_EQ(row, late_row);
    const float added = prepare_query(each.frame, frame_begin(each.frame, 16384 + 700), key, query);
    EXPECT_EQ(added, prepare_query(late, frame_begin(late, 700), key, late_query));
    EXPECT_EQ(query, late_query);
    frame_key(each.frame, 700, key, row);
    EXPECT_NE(row, late_row);
  }
}

TEST(KeyFrame, CentreAndDiagonalShrinkTheErrorOfScores) {
  // Keys with a large common vector and unequal channels, as calibration finds them.
  const Calibrated c(128, 64, 128, KeyPairs::halves);
  double plain_error = 0;
  double framed_error = 0;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    const auto position = static_cast<int64_t>(16384 + seed);
    Row key = test::bell(seed, 128);
    for (size_t d = 0; d < 128; ++d) key[d] = 0.2f * key[d] / c.diagonal[d] + c.centre[d];
    const auto begin = static_cast<double>(frame_begin(c.frame, position));
    key = turned(key, begin, c.frequencies, c.frame.pairs);
    const Row query = test::bell(seed + 500, 128);
    std::vector<std::byte> packed(static_cast<size_t>(packed_row_bytes(KvCode::tcq3, 128)));
    Row row(128), prepared(128), back(128);
    frame_key(c.frame, position, key, row);
    ASSERT_TRUE(encode_row(KvCode::tcq3, row, packed));
    decode_stored_row(KvCode::tcq3, packed, back);
    const float added = prepare_query(c.frame, frame_begin(c.frame, position), query, prepared);
    framed_error += std::pow(dot(prepared, back) + added - dot(query, key), 2);
    ASSERT_TRUE(encode_row(KvCode::tcq3, key, packed));
    decode_row(KvCode::tcq3, packed, back);
    plain_error += std::pow(dot(query, back) - dot(query, key), 2);
  }
  EXPECT_LT(framed_error, 0.2 * plain_error);
}

TEST(KeyFrame, NamesTheFieldThatIsOutOfRange) {
  const Calibrated good(64, 32, 128, KeyPairs::halves);
  const auto message = [](const KeyFrame& frame, int head_dim = 64) {
    return check(frame, head_dim).message();
  };
  EXPECT_TRUE(check(good.frame, 64).ok());
  KeyFrame bad = good.frame;
  bad.frame = 64;
  EXPECT_THAT(message(bad), HasSubstr("frame is 64 tokens; frames of 128, 256 and 512 exist"));
  bad = good.frame;
  bad.first_position = 64;
  EXPECT_THAT(message(bad), HasSubstr("first_position is 64; it must be a multiple of the frame"));
  EXPECT_THAT(message(good.frame, 0), HasSubstr("head_dim is 0"));
  EXPECT_THAT(message(good.frame, 62), HasSubstr("32 frequencies turn more dims"));
  EXPECT_THAT(message(good.frame, 96), HasSubstr("centre has 64 numbers; a head needs 96"));
  std::vector<double> frequencies = {1, NAN};
  bad = good.frame;
  bad.frequencies = frequencies;
  EXPECT_THAT(message(bad), HasSubstr("frequencies hold a number that is not finite"));
  for (const float number : {0.0f, -1.0f, NAN, INFINITY}) {
    Row diagonal = good.diagonal;
    diagonal[9] = number;
    bad = good.frame;
    bad.diagonal = diagonal;
    EXPECT_THAT(message(bad), HasSubstr("diagonal holds a number that is not"));
  }
}

}  // namespace
}  // namespace kvik
