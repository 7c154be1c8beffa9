#include "kvik/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <limits>

#include "kvik/model/ggml_type.h"
#include "support/gguf_writer.h"

namespace kvik {
namespace {

using testing::ByteString;
using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::TensorSpec;

constexpr uint32_t kF32 = 0;
constexpr uint32_t kQ4_1 = 3;

TensorSpec tensor(std::string name, uint32_t type, std::vector<uint64_t> shape, size_t num_bytes) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.type = type;
  spec.shape = std::move(shape);
  spec.data.assign(num_bytes, std::byte{0x11});
  return spec;
}

GgufWriter good_file() {
  GgufWriter w;
  w.add_string("general.architecture", "llama").add_u32("llama.block_count", 2);
  w.add_f32("llama.rope.freq_base", 10000.0f).add_bool("tokenizer.ggml.add_bos_token", true);
  w.add_strings("tokenizer.ggml.tokens", {"a", "", "\xc3\xa9t\xc3\xa9"});
  w.add_array<int32_t>("tokenizer.ggml.token_type", GgufType::i32, {1, -3, 6});
  w.add_array<float>("tokenizer.ggml.scores", GgufType::f32, {0.5f, -1.0f});
  w.add_tensor(tensor("output_norm.weight", kF32, {5}, 20));
  w.add_tensor(tensor("blk.0.attn_q.weight", kQ4_1, {64, 3}, 3 * 2 * 20));
  return w;
}

// The status of parsing what the writer makes.
Status parse_status(const GgufWriter& writer) {
  const std::vector<std::byte> bytes = writer.bytes();
  return GgufFile::parse(bytes).status();
}

void expect_refused(const GgufWriter& writer, StatusCode code, const std::string& words) {
  const Status status = parse_status(writer);
  EXPECT_EQ(status.code(), code) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr(words));
}

TEST(Gguf, ReadsMetadataOfEveryType) {
  GgufWriter w;
  w.add_value("u8", GgufType::u8, uint8_t{200}).add_value("i8", GgufType::i8, int8_t{-7});
  w.add_value("u16", GgufType::u16, uint16_t{60000}).add_value("i16", GgufType::i16, int16_t{-2});
  w.add_value("u32", GgufType::u32, 4000000000u).add_value("i32", GgufType::i32, -5);
  w.add_value("u64", GgufType::u64, uint64_t{1} << 40);
  w.add_value("i64", GgufType::i64, std::numeric_limits<int64_t>::min());
  w.add_f32("f32", 1.5f).add_value("f64", GgufType::f64, 0.1);
  w.add_bool("yes", true).add_bool("no", false).add_string("text", "x\ny");
  w.add_array<uint8_t>("bools", GgufType::boolean, {1, 0});
  w.add_array<double>("f64s", GgufType::f64, {0.1, 2});
  w.add_array<int32_t>("none", GgufType::i32, {});
  const std::vector<std::byte> bytes = w.bytes();
  Result<GgufFile> file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const GgufFile& f = file.value();
  EXPECT_EQ(f.integer("u8").value(), 200);
  EXPECT_EQ(f.integer("i8").value(), -7);
  EXPECT_EQ(f.integer("u16").value(), 60000);
  EXPECT_EQ(f.integer("i16").value(), -2);
  EXPECT_EQ(f.integer("u32").value(), 4000000000);
  EXPECT_EQ(f.integer("i32").value(), -5);
  EXPECT_EQ(f.integer("u64").value(), int64_t{1} << 40);
  EXPECT_EQ(f.integer("i64").value(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(f.real("f32").value(), 1.5);
  EXPECT_EQ(f.real("f64").value(), 0.1);
  EXPECT_TRUE(f.boolean("yes").value());
  EXPECT_FALSE(f.boolean("no").value());
  EXPECT_EQ(f.string("text").value(), "x\ny");
  EXPECT_THAT(f.booleans("bools").value(), ElementsAre(true, false));
  EXPECT_THAT(f.reals("f64s").value(), ElementsAre(0.1f, 2.0f));
  EXPECT_TRUE(f.integers("none").value().empty());
}

TEST(Gguf, ReadsArraysAndTensorsOfAGoodFile) {
  const std::vector<std::byte> bytes = good_file().bytes();
  Result<GgufFile> file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->metadata().size(), 7u);
  EXPECT_EQ(file->version(), 3u);
  EXPECT_THAT(file->strings("tokenizer.ggml.tokens").value(),
              ElementsAre("a", "", "\xc3\xa9t\xc3\xa9"));
  EXPECT_THAT(file->integers("tokenizer.ggml.token_type").value(), ElementsAre(1, -3, 6));
  EXPECT_THAT(file->reals("tokenizer.ggml.scores").value(), ElementsAre(0.5f, -1.0f));

  const GgufTensor* q = file->find_tensor("blk.0.attn_q.weight");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->rank, 2);
  EXPECT_THAT(q->shape, ElementsAre(64, 3, 1, 1));
  EXPECT_EQ(q->file_offset % 32, 0);
  EXPECT_EQ(file->tensor_bytes(*q).value().size(), 120u);
  EXPECT_EQ(q->file_offset + 120, file->file_bytes());
  EXPECT_EQ(file->find_tensor("blk.1.attn_q.weight"), nullptr);
}

TEST(Gguf, TypedAccessNamesTheKeyThatIsMissingOrOfAnotherType) {
  const std::vector<std::byte> bytes = good_file().bytes();
  Result<GgufFile> file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->integer("llama.width").status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(file->integer("llama.width").status().message(), HasSubstr("\"llama.width\""));
  const Status wrong = file->integer("tokenizer.ggml.tokens").status();
  EXPECT_EQ(wrong.code(), StatusCode::corrupt);
  EXPECT_THAT(wrong.message(), HasSubstr("array of string, expected integer"));
  EXPECT_FALSE(file->strings("tokenizer.ggml.token_type").ok());
  EXPECT_FALSE(file->integers("tokenizer.ggml.scores").ok());
  EXPECT_FALSE(file->real("llama.block_count").ok());
  EXPECT_FALSE(file->integer("tokenizer.ggml.add_bos_token").ok());
}

TEST(Gguf, AFallbackServesAMissingKeyButNotAWrongType) {
  const std::vector<std::byte> bytes = good_file().bytes();
  Result<GgufFile> file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->integer_or("absent", 7).value(), 7);
  EXPECT_EQ(file->integer_or("llama.block_count", 7).value(), 2);
  EXPECT_EQ(file->real_or("absent", 0.5).value(), 0.5);
  EXPECT_TRUE(file->boolean_or("absent", true).value());
  EXPECT_EQ(file->string_or("absent", "x").value(), "x");
  EXPECT_FALSE(file->string_or("llama.block_count", "x").ok());
}

TEST(Gguf, AnIntegerBeyondInt64IsAnError) {
  GgufWriter w;
  w.add_value("big", GgufType::u64, uint64_t{1} << 63);
  w.add_array<uint64_t>("bigs", GgufType::u64, {1, ~uint64_t{0}});
  const std::vector<std::byte> bytes = w.bytes();
  Result<GgufFile> file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->integer("big").status().code(), StatusCode::corrupt);
  EXPECT_EQ(file->integers("bigs").status().code(), StatusCode::corrupt);
}

// Cut anywhere, the file is refused: the writer leaves no padding after the last tensor.
TEST(Gguf, AFileCutAtAnyByteIsRefused) {
  const std::vector<std::byte> bytes = good_file().bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of exactly that size, so that a sanitizer sees a read past the cut.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    Result<GgufFile> file = GgufFile::parse(cut);
    ASSERT_FALSE(file.ok()) << "cut at " << size;
    EXPECT_FALSE(file.status().message().empty());
  }
}

TEST(Gguf, AFileCutInsideItsPaddingIsStillWhole) {
  std::vector<std::byte> bytes = good_file().bytes();
  const size_t whole = bytes.size();
  bytes.resize(whole + 12);
  for (size_t size = whole; size <= bytes.size(); ++size) {
    EXPECT_TRUE(GgufFile::parse(std::span(bytes).first(size)).ok());
  }
}

TEST(Gguf, ACutTensorIsNamedWithNeededAndPresentSize) {
  const std::vector<std::byte> bytes = good_file().bytes();
  const Status status = GgufFile::parse(std::span(bytes).first(bytes.size() - 1)).status();
  EXPECT_EQ(status.code(), StatusCode::corrupt);
  EXPECT_THAT(status.message(), HasSubstr("\"blk.0.attn_q.weight\" needs 120 bytes"));
  EXPECT_THAT(status.message(), HasSubstr("has only " + std::to_string(bytes.size() - 1)));
}

// Every byte of a small file set to each of a few telling values: an error or success, no crash,
// and whatever was accepted can be read.
TEST(Gguf, AnyDamagedByteGivesAnAnswer) {
  const std::vector<std::byte> bytes = good_file().bytes();
  int refused = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const unsigned value : {0x00u, 0x01u, 0x7fu, 0x80u, 0xffu}) {
      std::vector<std::byte> damaged = bytes;
      damaged[i] = static_cast<std::byte>(value);
      Result<GgufFile> file = GgufFile::parse(damaged);
      if (!file.ok()) {
        ++refused;
        continue;
      }
      for (const GgufEntry& e : file->metadata()) (void)file->strings(e.key).ok();
      for (const GgufTensor& t : file->tensors()) (void)file->tensor_bytes(t).ok();
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(Gguf, OtherFormatsAndVersionsAreNamed) {
  GgufWriter w = good_file();
  w.magic = "PK\x03\x04";
  expect_refused(w, StatusCode::corrupt, "begins with \"PK\\x03\\x04\"");
  w.magic = "tjgg";
  expect_refused(w, StatusCode::unsupported, "older than GGUF");
  w.magic = "GGUF";
  w.version = 1;
  expect_refused(w, StatusCode::unsupported, "version 1");
  w.version = 0;
  expect_refused(w, StatusCode::unsupported, "version 0");
  w.version = 99;
  expect_refused(w, StatusCode::unsupported, "version 99");
  w.version = 0x03000000;
  expect_refused(w, StatusCode::unsupported, "big-endian");
  w.version = 2;
  EXPECT_TRUE(parse_status(w).ok());
}

TEST(Gguf, AbsurdCountsAreRefusedAtOnce) {
  GgufWriter w = good_file();
  w.num_tensors = uint64_t{1} << 40;
  expect_refused(w, StatusCode::corrupt, "claims 1099511627776 tensors");
  w.num_tensors.reset();
  w.num_metadata = ~uint64_t{0};
  expect_refused(w, StatusCode::corrupt, "metadata entries");
}

TEST(Gguf, AbsurdLengthsAreRefusedAtOnce) {
  for (const uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 33}) {
    GgufWriter text;
    text.add_raw("key", 8, ByteString().put(length));
    expect_refused(text, StatusCode::corrupt, "claims a string of");

    GgufWriter numbers;
    numbers.add_raw("key", 9, ByteString().put(uint32_t{10}).put(length));
    expect_refused(numbers, StatusCode::corrupt, "elements");
  }
  // 2^61 elements of 8 bytes wrap to zero bytes.
  GgufWriter wraps;
  wraps.add_raw("key", 9, ByteString().put(uint32_t{10}).put(uint64_t{1} << 61));
  expect_refused(wraps, StatusCode::corrupt, "claims 2305843009213693952 elements");

  // The length of the first key, right behind the header.
  std::vector<std::byte> bytes = good_file().bytes();
  const uint64_t length = uint64_t{1} << 63;
  std::memcpy(bytes.data() + 24, &length, sizeof length);
  EXPECT_EQ(GgufFile::parse(bytes).status().code(), StatusCode::corrupt);
}

TEST(Gguf, UnknownAndNestedValueTypesAreRefused) {
  GgufWriter unknown;
  unknown.add_raw("odd", 255, ByteString().put(uint64_t{0}));
  expect_refused(unknown, StatusCode::corrupt, "\"odd\" at offset");
  GgufWriter element;
  element.add_raw("odd", 9, ByteString().put(uint32_t{13}).put(uint64_t{0}));
  expect_refused(element, StatusCode::corrupt, "unknown element type 13");
  GgufWriter nested;
  nested.add_raw("deep", 9,
                 ByteString().put(uint32_t{9}).put(uint64_t{1}).put(uint32_t{4}).put(uint64_t{0}));
  expect_refused(nested, StatusCode::unsupported, "nested arrays");
}

TEST(Gguf, ABooleanIsZeroOrOne) {
  GgufWriter scalar;
  scalar.add_value("flag", GgufType::boolean, uint8_t{2});
  expect_refused(scalar, StatusCode::corrupt, "neither 0 nor 1");
  GgufWriter array;
  array.add_array<uint8_t>("flags", GgufType::boolean, {1, 3});
  expect_refused(array, StatusCode::corrupt, "neither 0 nor 1");
}

TEST(Gguf, EmptyAndRepeatedNamesAreRefused) {
  GgufWriter keys = good_file();
  keys.add_u32("llama.block_count", 3);
  expect_refused(keys, StatusCode::corrupt, "\"llama.block_count\" occurs twice");
  GgufWriter names = good_file();
  names.add_tensor(tensor("output_norm.weight", kF32, {1}, 4));
  expect_refused(names, StatusCode::corrupt, "\"output_norm.weight\" occurs twice");
  GgufWriter empty;
  empty.add_u32("", 3);
  expect_refused(empty, StatusCode::corrupt, "has 0 bytes");
  GgufWriter unnamed;
  unnamed.add_tensor(tensor("", kF32, {1}, 4));
  EXPECT_EQ(parse_status(unnamed).code(), StatusCode::corrupt);
  GgufWriter large;
  large.add_u32(std::string(65536, 'k'), 3);
  expect_refused(large, StatusCode::corrupt, "has 65536 bytes");
}

TEST(Gguf, DimensionsAreChecked) {
  GgufWriter five;
  five.add_tensor(tensor("w", kF32, {1, 1, 1, 1, 1}, 4));
  expect_refused(five, StatusCode::corrupt, "claims 5 dimensions");
  GgufWriter most;
  most.add_tensor(tensor("w", kF32, {1}, 4));
  TensorSpec spec = tensor("v", kF32, {1}, 4);
  spec.num_dims = ~uint32_t{0};
  most.add_tensor(spec);
  expect_refused(most, StatusCode::corrupt, "claims 4294967295 dimensions");
  GgufWriter zero;
  zero.add_tensor(tensor("w", kF32, {4, 0}, 0));
  expect_refused(zero, StatusCode::corrupt, "a dimension of 0");
  GgufWriter product;
  product.add_tensor(tensor("w", kF32, {uint64_t{1} << 31, uint64_t{1} << 31, 4}, 4));
  expect_refused(product, StatusCode::corrupt, "more elements than fit in 64 bits");
  GgufWriter size;
  size.add_tensor(tensor("w", kF32, {uint64_t{1} << 62}, 4));
  EXPECT_EQ(parse_status(size).code(), StatusCode::corrupt);
  GgufWriter partial;
  partial.add_tensor(tensor("w", kQ4_1, {33}, 40));
  expect_refused(partial, StatusCode::corrupt, "Q4_1 needs a multiple of 32");
}

TEST(Gguf, TensorPlacesAreChecked) {
  TensorSpec spec = tensor("w", kF32, {8}, 32);
  for (const uint64_t offset : {uint64_t{32}, uint64_t{1} << 62, (uint64_t{1} << 63) - 32}) {
    GgufWriter outside;
    spec.offset = offset;
    outside.add_tensor(spec);
    expect_refused(outside, StatusCode::corrupt, "\"w\" needs 32 bytes");
  }
  GgufWriter beyond;
  spec.offset = ~uint64_t{0} - 31;
  beyond.add_tensor(spec);
  expect_refused(beyond, StatusCode::corrupt, "outside any file");
  GgufWriter misaligned;
  spec.offset = 4;
  misaligned.add_tensor(spec);
  expect_refused(misaligned, StatusCode::corrupt, "not a multiple of the alignment");
  GgufWriter overlapping;
  spec.offset = 0;
  overlapping.add_tensor(tensor("first", kF32, {16}, 64)).add_tensor(spec);
  expect_refused(overlapping, StatusCode::corrupt, "tensors \"first\" and \"w\" overlap");
}

TEST(Gguf, TheAlignmentKeyIsHonoured) {
  GgufWriter w;
  w.alignment = 256;
  w.add_u32("general.alignment", 256);
  w.add_tensor(tensor("a", kF32, {1}, 4)).add_tensor(tensor("b", kF32, {1}, 4));
  const std::vector<std::byte> bytes = w.bytes();
  Result<GgufFile> file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->alignment(), 256);
  EXPECT_EQ(file->find_tensor("a")->file_offset % 256, 0);
  EXPECT_EQ(file->find_tensor("b")->file_offset, file->find_tensor("a")->file_offset + 256);
}

TEST(Gguf, AnAlignmentThatIsNoPowerOfTwoIsRefused) {
  for (const int64_t alignment : {int64_t{0}, int64_t{24}, int64_t{-32}}) {
    GgufWriter w;
    w.add_value("general.alignment", GgufType::i64, alignment);
    expect_refused(w, StatusCode::corrupt, "power of two");
  }
  GgufWriter text;
  text.add_string("general.alignment", "32");
  EXPECT_EQ(parse_status(text).code(), StatusCode::corrupt);
  GgufWriter vast;
  vast.add_value("general.alignment", GgufType::u64, uint64_t{1} << 62);
  vast.add_tensor(tensor("w", kF32, {1}, 4));
  EXPECT_EQ(parse_status(vast).code(), StatusCode::corrupt);
}

TEST(Gguf, ATensorOfUnknownTypeIsListedAndRefusedWhenUsed) {
  GgufWriter w = good_file();
  w.add_tensor(tensor("future.weight", 777, {7}, 10));
  const std::vector<std::byte> bytes = w.bytes();
  Result<GgufFile> file = GgufFile::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const GgufTensor* future = file->find_tensor("future.weight");
  ASSERT_NE(future, nullptr);
  EXPECT_EQ(future->type, 777u);
  const Status used = file->tensor_bytes(*future).status();
  EXPECT_EQ(used.code(), StatusCode::unsupported);
  EXPECT_THAT(used.message(), HasSubstr("unknown type number 777"));
  EXPECT_TRUE(file->tensor_bytes(*file->find_tensor("output_norm.weight")).ok());
}

TEST(Gguf, NamesInMessagesCarryNoControlCharacters) {
  GgufWriter w;
  w.add_raw("bad\x1b[2J\n", 255, ByteString().put(uint64_t{0}));
  expect_refused(w, StatusCode::corrupt, "\"bad\\x1b[2J\\x0a\"");
}

class GgufOnDisk : public ::testing::Test {
 protected:
  GgufOnDisk() : path_(::testing::TempDir() + "kvik_gguf_" + std::to_string(getpid())) {}
  ~GgufOnDisk() override { std::remove(path_.c_str()); }
  void write(std::span<const std::byte> bytes) {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  std::string path_;
};

TEST_F(GgufOnDisk, ViewsStayValidWhenTheFileObjectMoves) {
  const std::vector<std::byte> bytes = good_file().bytes();
  write(bytes);
  Result<GgufFile> opened = GgufFile::open(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const std::string_view name = opened->string("general.architecture").value();
  const auto data = opened->tensor_bytes(*opened->find_tensor("output_norm.weight")).value();
  GgufFile file = std::move(opened).value();
  GgufFile other = std::move(file);
  file = std::move(other);
  EXPECT_EQ(name, "llama");
  EXPECT_EQ(data[19], std::byte{0x11});
  EXPECT_EQ(file.integer("llama.block_count").value(), 2);
}

TEST_F(GgufOnDisk, ErrorsNameTheFile) {
  write({});
  const Status empty = GgufFile::open(path_).status();
  EXPECT_EQ(empty.code(), StatusCode::corrupt);
  EXPECT_THAT(empty.message(), HasSubstr(path_ + ": the file is empty"));
  EXPECT_EQ(GgufFile::open(path_ + ".absent").status().code(), StatusCode::io_error);
  EXPECT_THAT(GgufFile::open("/").status().message(), HasSubstr("not a regular file"));
}

TEST(GgmlType, RowBytesNeedWholeBlocks) {
  const GgmlTypeInfo* q4_1 = ggml_type_info(kQ4_1);
  ASSERT_NE(q4_1, nullptr);
  EXPECT_EQ(ggml_row_bytes(*q4_1, 576), 360);
  EXPECT_EQ(ggml_row_bytes(*q4_1, 570), std::nullopt);
  EXPECT_EQ(ggml_row_bytes(*q4_1, -32), std::nullopt);
  EXPECT_EQ(ggml_row_bytes(*ggml_type_info(28), int64_t{1} << 61), std::nullopt);
  EXPECT_EQ(ggml_type_info(4), nullptr);
}

}  // namespace
}  // namespace kvik
