// Every vector of tests/golden/formats: encoders and decoders of packed rows bit for bit, tables,
// rotation, refused rows; trellis encoders by their error; keys in frames by their tolerance.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "format/hadamard.h"
#include "format/level_tables.h"
#include "format/lloyd_max.h"
#include "kvik/core/dtype.h"
#include "kvik/format/key_frame.h"
#include "kvik/format/row_codec.h"
#include "support/sha256.h"

namespace kvik::test {
namespace {

using nlohmann::json;

const std::string kFolder = KVIK_GOLDEN_DIR "/formats/";

json read_manifest(const std::string& name) { return json::parse(std::ifstream(kFolder + name)); }

const json& manifest() {
  static const json kManifest = read_manifest("manifest.json");
  return kManifest;
}
const json& trellis_manifest() {
  static const json kManifest = read_manifest("manifest_tcq.json");
  return kManifest;
}

// The elements of a stored array, of its own type.
template <class T>
std::vector<T> stored(const json& ref) {
  std::ifstream file(kFolder + ref["file"].get<std::string>(), std::ios::binary);
  std::vector<T> values(ref["nbytes"].get<size_t>() / sizeof(T));
  file.seekg(ref["offset"].get<int64_t>());
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
  EXPECT_TRUE(file.good()) << ref;
  return values;
}

// The same, widened exactly.
std::vector<float> widened(const json& ref) {
  const auto dtype = ref["dtype"].get<std::string>();
  if (dtype == "f32") return stored<float>(ref);
  std::vector<float> values;
  for (const uint16_t bits : stored<uint16_t>(ref)) {
    values.push_back(dtype == "f16" ? f16_to_f32(bits) : bf16_to_f32(bits));
  }
  return values;
}

std::string digest(const void* data, size_t bytes) {
  return sha256_hex({static_cast<const std::byte*>(data), bytes});
}

// The digest of values as an array of `dtype`; halves and bfloat16 are rounded to nearest even.
std::string digest_as(const std::vector<float>& values, const std::string& dtype) {
  if (dtype == "f32") return digest(values.data(), values.size() * 4);
  std::vector<uint16_t> bits;
  for (const float x : values) bits.push_back(dtype == "f16" ? f32_to_f16(x) : f32_to_bf16(x));
  return digest(bits.data(), bits.size() * 2);
}

// "kv_q8", "tq_k_q5_0", "tq_v_3" and "tq4" are names of the vectors.
KvCode code_of(const std::string& format) {
  if (format.starts_with("kv_")) return parse_kv_code(format.substr(3)).value();
  if (format.starts_with("tq_k_")) return parse_turboquant_key(format.substr(5)).value();
  if (format.starts_with("tq_v_"))
    return parse_turboquant_value("q" + format.substr(5) + "_0").value();
  return parse_kv_code(format).value();
}

// The rows of a case, packed one after the other.
struct PackedRows {
  KvCode code;
  int head_dim;
  std::vector<std::byte> bytes;

  size_t row_bytes() const { return static_cast<size_t>(packed_row_bytes(code, head_dim)); }
  size_t num_rows() const { return bytes.size() / row_bytes(); }
  std::span<const std::byte> row(size_t i) const {
    return std::span(bytes).subspan(i * row_bytes(), row_bytes());
  }
};

// The rows that the vectors store as separate arrays of codes, scales and zero points.
PackedRows stored_rows(KvCode code, int head_dim, const json& arrays) {
  const PackedRowLayout layout = packed_row_layout(code, head_dim);
  const auto codes = stored<std::byte>(arrays["packed"]);
  const auto scales = stored<std::byte>(arrays["scale"]);
  const auto zeros =
      arrays.contains("zero") ? stored<std::byte>(arrays["zero"]) : std::vector<std::byte>();
  const auto num_rows = arrays["packed"]["shape"][0].get<int64_t>();
  EXPECT_EQ(static_cast<int64_t>(codes.size()), num_rows * layout.code_bytes);
  EXPECT_EQ(static_cast<int64_t>(scales.size()), num_rows * layout.scale_bytes);
  EXPECT_EQ(static_cast<int64_t>(zeros.size()), num_rows * layout.zero_bytes);
  PackedRows rows{code, head_dim, {}};
  for (int64_t r = 0; r < num_rows; ++r) {
    const auto add = [&](const std::vector<std::byte>& from, int64_t bytes) {
      rows.bytes.insert(rows.bytes.end(), from.begin() + r * bytes, from.begin() + (r + 1) * bytes);
    };
    add(codes, layout.code_bytes);
    add(scales, layout.scale_bytes);
    add(zeros, layout.zero_bytes);
  }
  return rows;
}

std::vector<std::byte> encoded(KvCode code, std::span<const float> row) {
  std::vector<std::byte> packed(
      static_cast<size_t>(packed_row_bytes(code, static_cast<int>(row.size()))));
  EXPECT_TRUE(encode_row(code, row, packed));
  return packed;
}

std::vector<float> decoded(const PackedRows& rows, bool in_stored_domain) {
  std::vector<float> values;
  std::vector<float> row(static_cast<size_t>(rows.head_dim));
  for (size_t r = 0; r < rows.num_rows(); ++r) {
    in_stored_domain ? decode_stored_row(rows.code, rows.row(r), row)
                     : decode_row(rows.code, rows.row(r), row);
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

// Encodes and decodes the rows of one case; returns how many rows it compared.
size_t expect_exact(const json& c) {
  const KvCode code = code_of(c["format"]);
  const int head_dim = c["D"];
  EXPECT_TRUE(check(code, head_dim).ok()) << c["id"];
  const PackedRows rows = stored_rows(code, head_dim, c["arrays"]);
  const std::vector<float> input = widened(c["input"]);
  for (size_t r = 0; r < rows.num_rows(); ++r) {
    const auto at = c["rows"][r].get<size_t>() * static_cast<size_t>(head_dim);
    const std::vector<std::byte> got =
        encoded(code, std::span(input).subspan(at, static_cast<size_t>(head_dim)));
    EXPECT_TRUE(std::equal(got.begin(), got.end(), rows.row(r).begin()))
        << c["id"] << " row " << c["labels"][r];
  }
  const json& dequant = c["arrays"]["dequant"];
  EXPECT_EQ(digest_as(decoded(rows, false), dequant["dtype"]), dequant["sha256"]) << c["id"];
  if (c["arrays"].contains("dequant_rotated")) {
    EXPECT_EQ(digest_as(decoded(rows, true), "f32"), c["arrays"]["dequant_rotated"]["sha256"])
        << c["id"];
  } else {
    EXPECT_EQ(digest_as(decoded(rows, true), dequant["dtype"]), dequant["sha256"]) << c["id"];
  }
  return rows.num_rows();
}

TEST(FormatGolden, EveryRowOfEveryFormatIsEncodedAndDecodedBitForBit) {
  size_t num_rows = 0;
  for (const json& c : manifest()["cases"]) num_rows += expect_exact(c);
  EXPECT_EQ(manifest()["cases"].size(), 237u);
  EXPECT_EQ(num_rows, 2137u);
  std::printf("%zu rows\n", num_rows);
}

TEST(FormatGolden, CentredKeysAreTheRowsLessTheirCentre) {
  size_t num_rows = 0;
  for (const json& c : manifest()["centred"]) {
    const KvCode code = code_of(c["format"]);
    const auto head_dim = c["D"].get<size_t>();
    const PackedRows rows = stored_rows(code, c["D"], c["arrays"]);
    const std::vector<float> input = stored<float>(c["input"]);
    const std::vector<float> mu = stored<float>(c["mu"]);
    std::vector<float> back = decoded(rows, false);
    for (size_t r = 0; r < rows.num_rows(); ++r, ++num_rows) {
      std::vector<float> row(head_dim);
      for (size_t d = 0; d < head_dim; ++d) row[d] = input[r * head_dim + d] - mu[d];
      const std::vector<std::byte> got = encoded(code, row);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), rows.row(r).begin())) << c["id"] << " " << r;
      for (size_t d = 0; d < head_dim; ++d) back[r * head_dim + d] += mu[d];
    }
    EXPECT_EQ(digest_as(decoded(rows, true), "f32"), c["arrays"]["dequant_rotated"]["sha256"]);
    EXPECT_EQ(digest_as(back, "f32"), c["arrays"]["dequant"]["sha256"]) << c["id"];
  }
  EXPECT_EQ(manifest()["centred"].size(), 12u);
  EXPECT_EQ(num_rows, 72u);
}

// The codes that an entry of "refuse" speaks of; "all" leaves out the trellis, which has files of
// its own and shares the rule.
std::vector<KvCode> refused_codes(const json& entry) {
  if (entry["format"] != "all") return {code_of(entry["format"])};
  return {all_packed_codes().begin(), all_packed_codes().end()};
}

TEST(FormatGolden, RefusedRowsWriteNothing) {
  size_t num_refused = 0;
  for (const json& entry : manifest()["refuse"]) {
    const auto head_dim = entry["D"].get<size_t>();
    const std::vector<float> input = widened(entry["input"]);
    const auto begin =
        input.begin() + static_cast<int64_t>(entry["row_index"].get<size_t>() * head_dim);
    std::vector<float> row(begin, begin + static_cast<int64_t>(head_dim));
    if (entry.contains("replace")) {
      const auto value = entry["replace"]["value"].get<std::string>();
      row[entry["replace"]["index"].get<size_t>()] = value == "nan"    ? NAN
                                                     : value == "+inf" ? INFINITY
                                                                       : -INFINITY;
    }
    for (const KvCode code : refused_codes(entry)) {
      const std::vector<std::byte> before(
          static_cast<size_t>(packed_row_bytes(code, static_cast<int>(head_dim))), std::byte{0xa5});
      std::vector<std::byte> packed = before;
      EXPECT_FALSE(encode_row(code, row, packed)) << kv_code_name(code) << " " << entry;
      EXPECT_EQ(packed, before) << kv_code_name(code) << " " << entry;
      ++num_refused;
    }
  }
  EXPECT_EQ(manifest()["refuse"].size(), 21u);
  EXPECT_EQ(num_refused, 18u + 3 * all_packed_codes().size());
}

TEST(FormatGolden, TablesAreTheStoredOnes) {
  int num_tables = 0;
  for (const int bits : {2, 3, 4, 5, 8}) {
    const json& table = manifest()["tables"]["lloyd_max_" + std::to_string(bits)];
    const internal::Codebook book = internal::lloyd_max(bits);
    EXPECT_TRUE(std::ranges::equal(book.centroids, stored<float>(table["centroids"]))) << bits;
    EXPECT_TRUE(std::ranges::equal(book.boundaries, stored<float>(table["boundaries"]))) << bits;
    ++num_tables;
  }
  for (const int bits : {4, 3, 2}) {
    const json& scalar = manifest()["tables"]["tq" + std::to_string(bits)];
    const internal::LevelTable levels = internal::scalar_levels(bits);
    EXPECT_TRUE(std::ranges::equal(levels.levels, stored<int8_t>(scalar["table"]))) << bits;
    EXPECT_EQ(levels.gain, scalar["gain"].get<float>());
    const std::vector<float> boundaries = stored<float>(scalar["boundaries"]);
    for (size_t i = 0; i < boundaries.size(); ++i) {
      EXPECT_EQ(
          (internal::level_value(levels.levels[i]) + internal::level_value(levels.levels[i + 1])) /
              2,
          boundaries[i]);
    }
    const json& trellis = trellis_manifest()["tables"]["tcq" + std::to_string(bits)];
    EXPECT_TRUE(std::ranges::equal(internal::trellis_levels(bits).levels,
                                   stored<int8_t>(trellis["table"])));
    EXPECT_EQ(internal::trellis_levels(bits).gain, trellis["gain"].get<float>());
    num_tables += 2;
  }
  EXPECT_EQ(num_tables, 11);
}

TEST(FormatGolden, ProbesOnAndBesideEachBoundaryFindTheirCell) {
  size_t num_probes = 0;
  for (const auto& [name, probe] : manifest()["codebook_probes"].items()) {
    const internal::Codebook book = internal::lloyd_max(name.back() - '0');
    const std::vector<float> u = stored<float>(probe["u"]);
    const std::vector<uint8_t> index = stored<uint8_t>(probe["index"]);
    for (size_t i = 0; i < u.size(); ++i, ++num_probes) {
      EXPECT_EQ(internal::cell_of(u[i], book.boundaries), index[i]) << name << " " << u[i];
    }
  }
  EXPECT_EQ(num_probes, 3 * (3 + 7 + 15 + 31 + 255) + 5 * 4u);
}

TEST(FormatGolden, SignsAndRotationsAreTheStoredOnes) {
  for (const auto& [name, ref] : manifest()["signs"].items()) {
    const int head_dim = std::stoi(name);
    const std::vector<int8_t> signs = stored<int8_t>(ref);
    ASSERT_EQ(signs.size(), static_cast<size_t>(head_dim));
    for (int i = 0; i < head_dim; ++i) {
      EXPECT_EQ(internal::is_sign_negative(head_dim, i) ? -1 : 1, signs[static_cast<size_t>(i)]);
    }
  }
  for (const auto& [name, c] : manifest()["rotations"].items()) {
    const int head_dim = std::stoi(name);
    EXPECT_EQ(internal::hadamard_block(head_dim), c["block"].get<int>());
    std::vector<float> rows = stored<float>(c["input"]);
    const std::vector<float> rotated = stored<float>(c["rotated"]);
    rows.resize(rotated.size());
    for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(head_dim)) {
      internal::rotate(rows.data() + at, head_dim);
    }
    EXPECT_EQ(rows, rotated) << name;
  }
  EXPECT_EQ(manifest()["signs"].size(), 8u);
  EXPECT_EQ(manifest()["rotations"].size(), 8u);
}

// |decoded - rotated input|^2 / |input|^2, in double; 0 for a row of zeros.
double relative_error(std::span<const float> input, std::span<const float> stored_domain) {
  const auto head_dim = static_cast<int>(input.size());
  std::vector<float> rotated(input.begin(), input.end());
  internal::rotate(rotated.data(), head_dim);
  double error = 0;
  double energy = 0;
  for (size_t d = 0; d < input.size(); ++d) {
    error += std::pow(double{stored_domain[d]} - rotated[d], 2);
    energy += double{input[d]} * input[d];
  }
  return energy == 0 ? error : error / energy;
}

TEST(FormatGolden, TrellisRowsAreDecodedBitForBit) {
  size_t num_rows = 0;
  for (const json& c : trellis_manifest()["cases"]) {
    const PackedRows rows = stored_rows(code_of(c["format"]), c["D"], c["arrays"]);
    for (const bool in_stored_domain : {true, false}) {
      const json& want = c["arrays"][in_stored_domain ? "dequant_rotated" : "dequant"];
      EXPECT_EQ(digest_as(decoded(rows, in_stored_domain), "f32"), want["sha256"]) << c["id"];
    }
    num_rows += rows.num_rows();
  }
  EXPECT_EQ(trellis_manifest()["cases"].size(), 21u);
  EXPECT_EQ(num_rows, 210u);
}

TEST(FormatGolden, TrellisEncoderStaysWithinTwoPercentOfTheStoredError) {
  size_t num_rows = 0;
  size_t num_same = 0;
  double worst = 0;
  for (const json& c : trellis_manifest()["cases"]) {
    const KvCode code = code_of(c["format"]);
    const auto head_dim = c["D"].get<size_t>();
    const PackedRows rows = stored_rows(code, c["D"], c["arrays"]);
    const std::vector<float> input = widened(c["input"]);
    for (size_t r = 0; r < rows.num_rows(); ++r, ++num_rows) {
      const std::span<const float> row = std::span(input).subspan(r * head_dim, head_dim);
      const std::vector<std::byte> got = encoded(code, row);
      num_same += std::equal(got.begin(), got.end(), rows.row(r).begin());
      std::vector<float> back(head_dim);
      decode_stored_row(code, got, back);
      const double error = relative_error(row, back);
      const auto want = c["relative_error"][r].get<double>();
      EXPECT_LE(error, 1.02 * want) << c["id"] << " row " << r;
      if (want > 0) worst = std::max(worst, error / want);
    }
  }
  EXPECT_EQ(num_rows, 210u);
  // More than the format asks: the scalar search breaks ties as the stored one does.
  EXPECT_EQ(num_same, num_rows);
  std::printf("worst error over the stored one %.5f; %zu of %zu rows have the stored bits\n", worst,
              num_same, num_rows);
}

float largest(const std::vector<float>& values) {
  float most = 0;
  for (const float x : values) most = std::max(most, std::fabs(x));
  return most;
}

// A case of the frame vectors with its transform.
struct FrameCase {
  size_t head_dim;
  std::vector<double> frequencies;
  std::vector<float> centre, diagonal, keys, queries;
  KeyFrame frame;

  explicit FrameCase(const json& c)
      : head_dim(c["D"].get<size_t>()),
        centre(stored<float>(c["mu"])),
        diagonal(stored<float>(c["diagonal"])),
        keys(stored<float>(c["keys"])),
        queries(stored<float>(c["queries"])) {
    for (size_t i = 0; i < head_dim / 2; ++i) {
      frequencies.push_back(
          std::pow(c["rope_base"].get<double>(),
                   -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
    }
    frame = {.frame = c["frame"].get<int>(),
             .pairs = c["layout"] == "pair" ? KeyPairs::neighbours : KeyPairs::halves,
             .frequencies = frequencies,
             .centre = centre,
             .diagonal = diagonal};
    EXPECT_TRUE(check(frame, static_cast<int>(head_dim)).ok());
  }
};

constexpr double kFrameTolerance = 2e-5;  // of the largest magnitude

TEST(FormatGolden, KeysAndQueriesInFramesStayWithinTolerance) {
  size_t num_numbers = 0;
  double worst = 0;
  const auto compare = [&](float got, float want, float scale, const json& id) {
    EXPECT_NEAR(got, want, kFrameTolerance * scale) << id;
    worst = std::max(worst, std::fabs(double{got} - want) / scale);
    ++num_numbers;
  };
  const json frames = read_manifest("manifest_frames.json");
  for (const json& c : frames["cases"]) {
    const FrameCase built(c);
    const std::vector<float> coded = stored<float>(c["coded_input"]);
    const std::vector<float> prepared = stored<float>(c["prepared"]);
    const std::vector<float> added = stored<float>(c["added"]);
    std::vector<float> row(built.head_dim);
    for (size_t p = 0; p < c["positions"].size(); ++p) {
      const std::span key = std::span(built.keys).subspan(p * built.head_dim, built.head_dim);
      frame_key(built.frame, c["positions"][p], key, row);
      internal::rotate(row.data(), static_cast<int>(built.head_dim));
      for (size_t d = 0; d < built.head_dim; ++d) {
        compare(row[d], coded[p * built.head_dim + d], largest(coded), c["id"]);
      }
    }
    const size_t num_queries = built.queries.size() / built.head_dim;
    for (size_t at = 0; at < added.size(); ++at) {
      const std::span query =
          std::span(built.queries).subspan(at % num_queries * built.head_dim, built.head_dim);
      const float number =
          prepare_query(built.frame, c["frame_bases"][at / num_queries], query, row);
      compare(number, added[at], largest(added), c["id"]);
      for (size_t d = 0; d < built.head_dim; ++d) {
        compare(row[d], prepared[at * built.head_dim + d], largest(prepared), c["id"]);
      }
    }
  }
  EXPECT_EQ(frames["cases"].size(), 4u);
  std::printf("%zu numbers, worst difference %.2e of the largest\n", num_numbers, worst);
}

}  // namespace
}  // namespace kvik::test
