#include "kvik/format/row_codec.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "format/bit_stream.h"
#include "format/hadamard.h"
#include "format/level_tables.h"
#include "format/lloyd_max.h"
#include "format/packed_traits.h"
#include "kvik/core/dtype.h"
#include "support/random.h"

namespace kvik {
namespace {

using internal::PackedFamily;
using internal::traits_of;
using Row = std::vector<float>;
using Bytes = std::vector<std::byte>;

constexpr float kLargest = std::numeric_limits<float>::max();

Bytes blank(KvCode code, size_t head_dim) {
  return Bytes(static_cast<size_t>(packed_row_bytes(code, static_cast<int>(head_dim))),
               std::byte{0xa5});
}

Bytes encoded(KvCode code, const Row& row) {
  Bytes packed = blank(code, row.size());
  EXPECT_TRUE(encode_row(code, row, packed)) << kv_code_name(code);
  return packed;
}

Row decoded(KvCode code, const Bytes& packed, size_t head_dim) {
  Row row(head_dim, NAN);
  decode_row(code, packed, row);
  return row;
}

Row decoded_stored(KvCode code, const Bytes& packed, size_t head_dim) {
  Row row(head_dim, NAN);
  decode_stored_row(code, packed, row);
  return row;
}

Row round_trip(KvCode code, const Row& row) {
  return decoded(code, encoded(code, row), row.size());
}

// The codes of a packed row, one a byte. Not for the trellis.
std::vector<uint8_t> codes_of(KvCode code, const Bytes& packed, size_t head_dim) {
  std::vector<uint8_t> codes(head_dim);
  internal::unpack_bits(packed.data(), static_cast<int>(head_dim), packed_code_bits(code),
                        codes.data());
  return codes;
}

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += double{a[d]} * b[d];
  return sum;
}

double squared_distance(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t d = 0; d < a.size(); ++d) sum += std::pow(double{a[d]} - b[d], 2);
  return sum;
}

// A unit normal by Box and Muller.
Row gaussian(uint64_t seed, size_t count) {
  Row row(count);
  for (size_t d = 0; d < count; ++d) {
    const auto uniform = [&](uint64_t i) {
      return (static_cast<double>(test::hash64(seed, i) >> 11) + 0.5) * 0x1p-53;
    };
    row[d] = static_cast<float>(std::sqrt(-2 * std::log(uniform(2 * d))) *
                                std::cos(2 * std::acos(-1.0) * uniform(2 * d + 1)));
  }
  return row;
}

std::vector<KvCode> codes_where(bool (*predicate)(KvCode)) {
  std::vector<KvCode> codes;
  for (const KvCode code : all_packed_codes()) {
    if (predicate(code)) codes.push_back(code);
  }
  return codes;
}
bool has_row_scale(KvCode code) {
  const PackedFamily family = traits_of(code).family;
  return family == PackedFamily::scalar || family == PackedFamily::trellis;
}

// Head dims of all families with their awkward members.
std::vector<int> head_dims(KvCode code) {
  std::vector<int> dims;
  for (int dim = 32; dim <= 576; dim += 16) {
    if (check(code, dim).ok()) dims.push_back(dim);
  }
  return dims;
}

// ---- every code -------------------------------------------------------------------------------

// Unrotated codes: a row whose values are codes times a scale comes back code for code. Every row
// holds the extremes, which fix the scale, and the codes rotate over all positions.
TEST(RowCodec, EveryKvQuantCodeRoundTrips) {
  for (const KvCode code : {KvCode::q8, KvCode::q6, KvCode::q4}) {
    const int qmax = (1 << (packed_code_bits(code) - 1)) - 1;
    const size_t dim = 2 * static_cast<size_t>(qmax) + 2;
    for (size_t shift = 0; shift < dim; ++shift) {
      Row row(dim);
      for (size_t d = 0; d < dim; ++d) {
        const int value =
            static_cast<int>((d + shift) % dim) - qmax;  // one too many: wraps to -qmax
        row[d] = static_cast<float>(value > qmax ? -qmax : value) * 0.375f;
      }
      EXPECT_EQ(round_trip(code, row), row) << kv_code_name(code) << " " << shift;
    }
  }
}

TEST(RowCodec, EveryTurboQuantKeyCodeRoundTripsWithEveryZeroPoint) {
  for (const KvCode code : codes_where([](KvCode c) { return !stores_values(c); })) {
    const bool is_signed = traits_of(code).is_signed;
    const int least = is_signed ? -127 : 0;
    const int most = is_signed ? 127 : (1 << packed_code_bits(code)) - 1;
    for (int value = least; value <= most; ++value) {
      for (const int zero : {-300, -1, 0, 1, 77, 300}) {
        Row row(32, static_cast<float>(value + zero) * 0.25f);
        row[30] = static_cast<float>(least + zero) * 0.25f;
        row[31] = static_cast<float>(most + zero) * 0.25f;
        const Bytes packed = encoded(code, row);
        EXPECT_EQ(decoded(code, packed, 32), row) << kv_code_name(code) << " " << value;
        EXPECT_EQ(codes_of(code, packed, 32)[7],
                  static_cast<uint8_t>(value) & ((1 << packed_code_bits(code)) - 1));
      }
    }
  }
}

// Rotated codes: one element sits on the level of the code, the others give the row the variance
// that the code's tables are made for.
TEST(RowCodec, EveryTurboQuantValueCodeIsChosenAndDecoded) {
  for (const int bits : {2, 3, 4, 5, 8}) {
    const KvCode code = parse_turboquant_value("q" + std::to_string(bits) + "_0").value();
    const std::span<const float> centroids = internal::lloyd_max(bits).centroids;
    for (size_t n = 0; n < centroids.size(); ++n) {
      const float c = centroids[n];
      const size_t at = n % 32;
      Row row(32, std::sqrt((32 - c * c) / 31));
      row[at] = c;
      internal::unrotate(row.data(), 32);
      const Bytes packed = encoded(code, row);
      EXPECT_EQ(codes_of(code, packed, 32)[at], n) << kv_code_name(code);
      EXPECT_NEAR(decoded_stored(code, packed, 32)[at], c, 1e-3 * std::fabs(c));
    }
  }
}

TEST(RowCodec, EveryScalarLevelIsChosenAndDecoded) {
  for (const KvCode code : {KvCode::tq4, KvCode::tq3, KvCode::tq2}) {
    const internal::LevelTable table = internal::scalar_levels(packed_code_bits(code));
    for (size_t n = 0; n < table.levels.size(); ++n) {
      const float level = internal::level_value(table.levels[n]) / table.gain;
      const size_t at = 3 * n % 64;
      Row row(64, std::sqrt((64 - level * level) / 63));
      row[at] = level;
      internal::unrotate(row.data(), 64);
      const Bytes packed = encoded(code, row);
      EXPECT_EQ(codes_of(code, packed, 64)[at], n) << kv_code_name(code);
      f16_bits scale;
      std::memcpy(&scale, packed.data() + packed.size() - 2, 2);
      EXPECT_EQ(decoded_stored(code, packed, 64)[at],
                internal::level_value(table.levels[n]) * f16_to_f32(scale));
    }
  }
}

TEST(RowCodec, EveryTq8CodeRoundTrips) {
  for (int value = -127; value <= 127; ++value) {
    Row row(64, static_cast<float>(value));
    row[5] = 127;
    internal::unrotate(row.data(), 64);  // exact: integers times 1/8
    const Bytes packed = encoded(KvCode::tq8, row);
    EXPECT_EQ(static_cast<int8_t>(packed[6]), value);
    EXPECT_EQ(decoded(KvCode::tq8, packed, 64), row);
  }
}

// Any bytes are a row: codes are read by the definition, from random bits that reach every level.
TEST(RowCodec, TrellisRowsDecodeByTheirDefinition) {
  for (const KvCode code : {KvCode::tcq4, KvCode::tcq3, KvCode::tcq2}) {
    const int bits = packed_code_bits(code);
    const std::span<const int8_t> levels = internal::trellis_levels(bits).levels;
    std::vector<bool> seen(levels.size());
    for (const int dim : {32, 80, 512}) {
      Bytes packed = blank(code, static_cast<size_t>(dim));
      for (size_t i = 0; i < packed.size(); ++i) {
        packed[i] = static_cast<std::byte>(test::below(static_cast<uint64_t>(dim + bits), i, 256));
      }
      const f16_bits scale = 0x3555;
      std::memcpy(packed.data() + packed.size() - 2, &scale, 2);
      const auto bit = [&](int at) {
        return static_cast<int>(packed[static_cast<size_t>(at / 8)]) >> (at % 8) & 1;
      };
      const auto u = [&](int i) { return i < 0 ? 0 : bit(dim * (bits - 1) + i); };
      const Row got = decoded_stored(code, packed, static_cast<size_t>(dim));
      for (int i = 0; i < dim; ++i) {
        int up = 0;
        for (int b = 0; b < bits - 1; ++b) up += bit(i * (bits - 1) + b) << b;
        const int n = 4 * up + 2 * (u(i) ^ u(i - 2)) + u(i - 1);
        seen[static_cast<size_t>(n)] = true;
        ASSERT_EQ(
            got[static_cast<size_t>(i)],
            (static_cast<float>(levels[static_cast<size_t>(n)]) + 0.5f) / 32 * f16_to_f32(scale));
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), static_cast<int64_t>(levels.size()));
  }
}

// No path that differs in one bit of one element has a smaller error.
TEST(RowCodec, TrellisSearchCannotBeImprovedByOneBit) {
  for (const KvCode code : {KvCode::tcq4, KvCode::tcq3, KvCode::tcq2}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const Row row = gaussian(seed, 64);
      Bytes packed = encoded(code, row);
      // Errors are compared in the units of the search: scale 1, rows of standard deviation `gain`.
      const f16_bits one = 0x3c00;
      std::memcpy(packed.data() + packed.size() - 2, &one, 2);
      Row want = row;
      internal::rotate(want.data(), 64);
      const double gain = internal::trellis_levels(packed_code_bits(code)).gain;
      const double factor = gain / std::sqrt(dot(want, want) / 64);
      for (float& y : want) y = static_cast<float>(y * factor);
      const double best = squared_distance(decoded_stored(code, packed, 64), want);
      for (size_t at = 0; at < 8 * (packed.size() - 2); ++at) {
        Bytes other = packed;
        other[at / 8] ^= static_cast<std::byte>(1 << at % 8);
        EXPECT_GE(squared_distance(decoded_stored(code, other, 64), want), best * (1 - 1e-5))
            << kv_code_name(code) << " bit " << at;
      }
    }
  }
}

// ---- docs/formats.md --------------------------------------------------------------------------

Bytes from_hex(std::string_view text) {
  Bytes bytes;
  for (size_t i = 0; i < text.size(); i += 3) {
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

// 1, 2, ... 32.
Row counted() {
  Row row(32);
  for (size_t d = 0; d < row.size(); ++d) row[d] = static_cast<float>(d + 1);
  return row;
}

// The first stored values, as the document rounds them.
void expect_example(KvCode code, const Row& row, std::string_view hex, const Row& first) {
  const Bytes packed = encoded(code, row);
  EXPECT_EQ(packed, from_hex(hex)) << kv_code_name(code);
  const Row stored = decoded_stored(code, packed, row.size());
  for (size_t d = 0; d < first.size(); ++d) {
    EXPECT_NEAR(stored[d], first[d], 5.1e-5) << kv_code_name(code) << " " << d;
  }
}

TEST(RowCodec, PacksTheExamplesOfTheDocument) {
  expect_example(KvCode::q6, {31, -31, 8, 0.5}, "7f 80 82 00 00 80 3f", {31, -31, 8, 0});
  Row steps = counted();
  for (float& x : steps) x = x * 0.5f - 4.5f;
  expect_example(KvCode::tqk_q5_0, steps,
                 "20 88 41 8a 39 28 a9 c5 9a 7b 30 ca 49 ab bd 38 eb cd bb ff 00 38 00 c8", steps);
  expect_example(KvCode::tqv_q3_0, counted(), "73 d1 b4 a7 29 47 9c 5c 87 c9 36 55 ba 4c",
                 {-4.6338f, 25.4083f, 14.2932f, -40.6852f});
  expect_example(KvCode::tq4, counted(), "d6 1a 39 ab 8d 8d c5 53 69 d4 ba 83 42 77 46 6b 85 4a",
                 {-7.5382f, 30.7640f, 12.4279f, -39.3209f});
  expect_example(KvCode::tcq3, counted(), "2d a2 bb 4d d6 8e 60 65 31 91 e8 ed d7 49",
                 {-6.0223f, 25.3668f, 10.0372f});
}

// ---- error ------------------------------------------------------------------------------------

TEST(RowCodec, GaussianRowsHaveTheStatedError) {
  const std::vector<std::pair<KvCode, double>> stated = {
      {KvCode::tq2, 0.130},      {KvCode::tq3, 0.0348},      {KvCode::tq4, 0.0093},
      {KvCode::tcq2, 0.096},     {KvCode::tcq3, 0.0243},     {KvCode::tcq4, 0.0064},
      {KvCode::tqv_q2_0, 0.112}, {KvCode::tqv_q3_0, 0.0325}, {KvCode::tqv_q4_0, 0.0089},
      {KvCode::tqv_q5_0, 0.0024}};
  for (const auto& [code, want] : stated) {
    double error = 0;
    double energy = 0;
    for (uint64_t seed = 0; seed < 400; ++seed) {
      const Row row = gaussian(seed, 128);
      error += squared_distance(round_trip(code, row), row);
      energy += dot(row, row);
    }
    EXPECT_NEAR(error / energy / want, 1, 0.03) << kv_code_name(code);
  }
}

TEST(RowCodec, UnrotatedRowsAreWithinHalfAStep) {
  for (const KvCode code : codes_where([](KvCode c) { return !is_rotated(c); })) {
    for (const int dim : head_dims(code)) {
      const Row row = test::bell(static_cast<uint64_t>(dim), dim);
      const Row back = round_trip(code, row);
      const size_t group = stores_values(code) ? row.size() : 32;
      for (size_t begin = 0; begin < row.size(); begin += group) {
        const auto [low, high] =
            std::minmax_element(row.begin() + static_cast<int64_t>(begin),
                                row.begin() + static_cast<int64_t>(begin + group));
        const int bits = packed_code_bits(code);
        const float step = stores_values(code)
                               ? std::max(std::fabs(*low), std::fabs(*high)) /
                                     static_cast<float>((1 << (bits - 1)) - 1)
                               : (*high - *low) / static_cast<float>((1 << bits) - 2 + (bits < 8));
        for (size_t d = begin; d < begin + group; ++d) {
          // Scales are rounded up to a half where they are halves.
          EXPECT_NEAR(back[d], row[d], 0.5012f * step) << kv_code_name(code) << " head_dim " << dim;
        }
      }
    }
  }
}

// formats: scale = |x|^2 / <x, x'>, so the inner product of a row with itself survives; only the
// rounding of the scale to f16 is left.
TEST(RowCodec, RowScalesAreUnbiasedOnEveryHeadDim) {
  for (const KvCode code : codes_where(has_row_scale)) {
    const std::vector<int> dims = head_dims(code);
    EXPECT_EQ(dims.size(), 31u);
    for (const int dim : dims) {
      Row row = test::bell(static_cast<uint64_t>(dim) + 5, dim);
      const Row back = round_trip(code, row);
      EXPECT_NEAR(dot(row, back) / dot(row, row), 1, 0x1p-11 + 1e-5)
          << kv_code_name(code) << " head_dim " << dim;
    }
  }
}

// The regression of q.k' on q.k for queries that lean on their key has slope 1.
TEST(RowCodec, InnerProductsAreUnbiased) {
  for (const KvCode code : codes_where(has_row_scale)) {
    double same = 0;
    double cross = 0;
    for (uint64_t seed = 0; seed < 500; ++seed) {
      const Row key = gaussian(seed, 128);
      Row query = gaussian(seed + 1000, 128);
      for (size_t d = 0; d < query.size(); ++d) query[d] += 0.577f * key[d];
      const double exact = dot(query, key);
      same += exact * exact;
      cross += exact * dot(query, round_trip(code, key));
    }
    EXPECT_NEAR(cross / same, 1, 0.01) << kv_code_name(code);
  }
}

// ---- ranges -----------------------------------------------------------------------------------

TEST(RowCodec, RowsOfZerosComeBackAsZeros) {
  for (const KvCode code : all_packed_codes()) {
    for (const int dim : head_dims(code)) {
      for (const float zero : {0.0f, -0.0f}) {
        const Row row(static_cast<size_t>(dim), zero);
        for (const float x : round_trip(code, row)) {
          EXPECT_EQ(x, 0.0f) << kv_code_name(code) << " head_dim " << dim;
        }
      }
    }
  }
}

// The bounds hold before hardware that flushes denormals could choose other codes.
TEST(RowCodec, RowsBelowTheSmallestBoundHaveTheBytesOfZeros) {
  for (const KvCode code : codes_where(is_rotated)) {
    Row row = test::bell(31, 64);
    for (float& x : row) x *= 1e-18f;  // sum of squares near 1e-34, below 2^-100
    EXPECT_EQ(encoded(code, row), encoded(code, Row(64, 0.0f))) << kv_code_name(code);
  }
  for (const KvCode code : codes_where([](KvCode c) { return !stores_values(c); })) {
    Row row = test::bell(31, 64);
    for (float& x : row) x *= 1e-31f;  // largest magnitude below 2^-100
    EXPECT_EQ(encoded(code, row), encoded(code, Row(64, 0.0f))) << kv_code_name(code);
  }
}

TEST(RowCodec, ConstantRowsKeepTheirValue) {
  for (const float value : {1.0f, -0.3f, 777.0f, 65504.0f, -65504.0f, 1e-3f}) {
    const Row row(64, value);
    for (const KvCode code : codes_where([](KvCode c) { return !is_rotated(c); })) {
      // KV-Quant: the value is the largest code; TurboQuant keys hold it as a half.
      const float want = stores_values(code) ? value : f16_to_f32(f32_to_f16(value));
      for (const float x : round_trip(code, row)) {
        EXPECT_NEAR(x, want, 2e-7f * std::fabs(value)) << kv_code_name(code) << " " << value;
      }
    }
    for (const KvCode code : codes_where(is_rotated)) {
      // The stored domain is no longer constant; two bits leave the most.
      EXPECT_LT(squared_distance(round_trip(code, row), row), 0.35 * dot(row, row))
          << kv_code_name(code) << " " << value;
    }
  }
}

TEST(RowCodec, AnOutlierOf1e4LeavesFiniteRowsOfTheFormatsOwnError) {
  for (const KvCode code : all_packed_codes()) {
    Row row = test::bell(11, 128);
    row[37] = 1e4f;
    const Row back = round_trip(code, row);
    for (const float x : back) EXPECT_TRUE(std::isfinite(x));
    // Unrotated formats lose the rest of the outlier's group, never the outlier. Rotated rows have
    // nearly one magnitude; two-bit levels with an rms scale lie 0.51 of it off at worst.
    EXPECT_NEAR(back[37], 1e4f, is_rotated(code) ? 5200.0f : 10.0f) << kv_code_name(code);
    EXPECT_LT(squared_distance(back, row), 0.27 * dot(row, row)) << kv_code_name(code);
    if (has_row_scale(code)) {
      EXPECT_NEAR(dot(back, row) / dot(row, row), 1, 0x1p-11 + 1e-5) << kv_code_name(code);
    }
  }
}

TEST(RowCodec, DenormalsNeitherTrapNorGrow) {
  for (const KvCode code : all_packed_codes()) {
    Row row(64);
    for (size_t d = 0; d < row.size(); ++d) {
      row[d] = static_cast<float>(test::below(9, d, 200) - 100) * 0x1p-149f;
    }
    for (const float x : round_trip(code, row)) EXPECT_LE(std::fabs(x), 1e-43f);
  }
}

TEST(RowCodec, TheLargestHalvesAreStored) {
  for (const KvCode code : all_packed_codes()) {
    Row row(128);
    for (size_t d = 0; d < row.size(); ++d) row[d] = d % 2 == 0 ? 65504.0f : -65504.0f;
    const Row back = round_trip(code, row);
    for (const float x : back) EXPECT_TRUE(std::isfinite(x)) << kv_code_name(code);
    EXPECT_LT(squared_distance(back, row), 0.35 * dot(row, row)) << kv_code_name(code);
  }
}

void expect_refused(KvCode code, const Row& row, const char* what) {
  const Bytes before = blank(code, row.size());
  Bytes packed = before;
  EXPECT_FALSE(encode_row(code, row, packed)) << kv_code_name(code) << " " << what;
  EXPECT_EQ(packed, before) << kv_code_name(code) << " " << what;
}

TEST(RowCodec, OneNumberThatIsNotFiniteRefusesTheRowAndWritesNothing) {
  for (const KvCode code : all_packed_codes()) {
    for (const int dim : {32, 96, 512}) {
      for (int at = 0; at < dim; ++at) {
        for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
          Row row = test::bell(1, dim);
          row[static_cast<size_t>(at)] = bad;
          expect_refused(code, row, "not finite");
        }
      }
    }
  }
}

TEST(RowCodec, StatisticsThatOverflowRefuseTheRow) {
  Row wide(64, 0.0f);
  wide[3] = kLargest;
  wide[40] = -kLargest;
  Row range = wide;
  range[4] = -kLargest;
  const Row large(64, 1e30f);
  for (const KvCode code : all_packed_codes()) {
    if (is_rotated(code)) expect_refused(code, large, "sum of squares");
    if (is_rotated(code)) expect_refused(code, wide, "rotation");
    if (!stores_values(code)) expect_refused(code, range, "range");
  }
  // In the order of the bits: 127 steps of a 127th of the largest float round to infinity.
  expect_refused(KvCode::q8, wide, "decoded peak");
  for (const KvCode code : {KvCode::q8, KvCode::q6, KvCode::q4}) {
    Row row = wide;
    for (float& x : row) x *= 0.999f;
    for (const float x : round_trip(code, row)) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(RowCodec, RowsWriteTheirBytesAndNothingElseAndDependOnNothingElse) {
  for (const KvCode code : all_packed_codes()) {
    for (const int dim : head_dims(code)) {
      const Row row = test::bell(static_cast<uint64_t>(dim), dim);
      const auto bytes = static_cast<size_t>(packed_row_bytes(code, dim));
      Bytes memory(bytes + 14, std::byte{0x5a});
      ASSERT_TRUE(encode_row(code, row, std::span(memory).subspan(7, bytes)));  // unaligned
      for (size_t i = 0; i < 7; ++i) {
        EXPECT_EQ(memory[i], std::byte{0x5a});
        EXPECT_EQ(memory[bytes + 7 + i], std::byte{0x5a});
      }
      const Bytes inner(memory.begin() + 7, memory.end() - 7);
      EXPECT_EQ(inner, encoded(code, row)) << kv_code_name(code) << " " << dim;
    }
  }
}

TEST(RowCodec, StoredRowsAreTheDecodedRowsRotated) {
  for (const KvCode code : all_packed_codes()) {
    const Row row = test::bell(21, 96);
    const Bytes packed = encoded(code, row);
    Row stored = decoded_stored(code, packed, 96);
    if (is_rotated(code)) internal::unrotate(stored.data(), 96);
    EXPECT_EQ(stored, decoded(code, packed, 96)) << kv_code_name(code);
  }
}

using RowCodecDeathTest = testing::Test;

TEST(RowCodec, RowsWhoseNumbersAreNotFiniteAreTold) {
  for (const KvCode code : all_packed_codes()) {
    const Row row(64, 1.5f);
    const Bytes good = encoded(code, row);
    EXPECT_TRUE(is_finite_row(code, good, 64)) << kv_code_name(code);
    const PackedRowLayout layout = packed_row_layout(code, 64);
    const bool is_f32 = code <= KvCode::q4;
    const auto width = static_cast<size_t>(is_f32 ? 4 : 2);
    for (auto at = static_cast<size_t>(layout.code_bytes); at < good.size(); at += width) {
      for (const bool is_nan : {false, true}) {
        Bytes bad = good;
        if (is_f32) {
          const float x = is_nan ? NAN : -INFINITY;
          std::memcpy(bad.data() + at, &x, 4);
        } else {
          const uint16_t x = is_nan ? 0x7e00 : 0xfc00;
          std::memcpy(bad.data() + at, &x, 2);
        }
        EXPECT_FALSE(is_finite_row(code, bad, 64)) << kv_code_name(code);
      }
    }
    // Whatever the codes are: all bits set.
    Bytes full = good;
    std::fill_n(full.begin(), layout.code_bytes, std::byte{0xff});
    EXPECT_TRUE(is_finite_row(code, full, 64)) << kv_code_name(code);
    for (const float x : decoded(code, full, 64)) EXPECT_TRUE(std::isfinite(x));
    if (!is_f32) continue;
    // The largest scale whose farthest code stays finite, and the next one.
    const float most = std::ldexp(FLT_MAX, 1 - packed_code_bits(code));
    for (const float scale : {most, std::nextafter(most, INFINITY)}) {
      std::memcpy(full.data() + layout.code_bytes, &scale, 4);
      EXPECT_EQ(is_finite_row(code, full, 64), scale == most) << kv_code_name(code);
    }
  }
}

TEST(RowCodecDeathTest, WrongSizesAreBugs) {
  Row row(64);
  Bytes packed(10);
  EXPECT_DEATH((void)encode_row(KvCode::tq4, row, packed), "packed_row_bytes");
  Row odd(40);
  EXPECT_DEATH(decode_row(KvCode::tqk_q4_0, packed, odd), "head_dim");
}

}  // namespace
}  // namespace kvik
