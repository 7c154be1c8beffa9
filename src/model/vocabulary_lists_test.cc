// The vocabulary as a model file spells it: lists of another type or length, ids that are none.
#include "kvik/model/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kvik/model/tokenizer.h"
#include "support/gguf_writer.h"

namespace kvik {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;

// Writes one key of the file; a test puts another writer in its place.
using Entries = std::map<std::string, std::function<void(GgufWriter&, const std::string& key)>>;

Entries good_entries() {
  Entries entries;
  entries["model"] = [](GgufWriter& w, const std::string& key) { w.add_string(key, "llama"); };
  entries["tokens"] = [](GgufWriter& w, const std::string& key) {
    w.add_strings(key, {"<unk>", "<s>", "</s>", "a"});
  };
  entries["scores"] = [](GgufWriter& w, const std::string& key) {
    w.add_array<float>(key, GgufType::f32, {0, 0, 0, -1});
  };
  entries["token_type"] = [](GgufWriter& w, const std::string& key) {
    w.add_array<int32_t>(key, GgufType::i32, {2, 3, 3, 1});
  };
  entries["merges"] = [](GgufWriter& w, const std::string& key) { w.add_strings(key, {"a a"}); };
  entries["bos_token_id"] = [](GgufWriter& w, const std::string& key) { w.add_u32(key, 1); };
  entries["eos_token_id"] = [](GgufWriter& w, const std::string& key) { w.add_u32(key, 2); };
  return entries;
}

Result<Vocabulary> read(const Entries& entries) {
  GgufWriter writer;
  for (const auto& [key, write] : entries) write(writer, "tokenizer.ggml." + key);
  const std::vector<std::byte> bytes = writer.bytes();
  const Result<GgufFile> file = GgufFile::parse(bytes);
  if (!file.ok()) return file.status();
  return read_vocabulary(*file);
}

// The file with another value of one key is refused, by whoever reads it first, in the key's name.
template <class Write>
void expect_refused(const std::string& key, const std::string& says, Write write) {
  Entries entries = good_entries();
  entries[key] = write;
  Result<Vocabulary> vocabulary = read(entries);
  const Status status = vocabulary.ok() ? Tokenizer::create(std::move(vocabulary).value()).status()
                                        : vocabulary.status();
  EXPECT_EQ(status.code(), StatusCode::corrupt) << key << " " << says;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("tokenizer.ggml." + key), HasSubstr(says)));
}

TEST(VocabularyLists, IsReadAsTheFileSpellsIt) {
  const Vocabulary v = read(good_entries()).value();
  EXPECT_EQ(v.model, "llama");
  EXPECT_THAT(v.pieces, ElementsAre("<unk>", "<s>", "</s>", "a"));
  EXPECT_THAT(v.scores, ElementsAre(0, 0, 0, -1));
  EXPECT_THAT(v.token_types, ElementsAre(2, 3, 3, 1));
  EXPECT_EQ(v.bos, 1);
  EXPECT_EQ(v.eos, 2);
  EXPECT_FALSE(v.unknown || v.padding || v.add_bos || v.add_eos || v.add_space_prefix);
  EXPECT_TRUE(Tokenizer::create(v).ok());
}

TEST(VocabularyLists, ListsOfAnotherElementTypeAreRefused) {
  expect_refused("scores", "array of u8", [](GgufWriter& w, const std::string& key) {
    w.add_array<uint8_t>(key, GgufType::u8, {0, 0, 0, 1});
  });
  expect_refused("scores", "array of i32", [](GgufWriter& w, const std::string& key) {
    w.add_array<int32_t>(key, GgufType::i32, {0, 0, 0, 1});
  });
  expect_refused("token_type", "array of string", [](GgufWriter& w, const std::string& key) {
    w.add_strings(key, {"2", "3", "3", "1"});
  });
  expect_refused("token_type", "array of f32", [](GgufWriter& w, const std::string& key) {
    w.add_array<float>(key, GgufType::f32, {2, 3, 3, 1});
  });
  expect_refused("tokens", "array of i32", [](GgufWriter& w, const std::string& key) {
    w.add_array<int32_t>(key, GgufType::i32, {0, 1, 2, 3});
  });
  expect_refused("merges", "array of i32", [](GgufWriter& w, const std::string& key) {
    w.add_array<int32_t>(key, GgufType::i32, {0});
  });
  // One value in place of a list, and a list in place of one value.
  expect_refused("tokens", "", [](GgufWriter& w, const std::string& key) { w.add_u32(key, 4); });
  expect_refused("bos_token_id", "", [](GgufWriter& w, const std::string& key) {
    w.add_array<uint32_t>(key, GgufType::u32, {1});
  });
}

TEST(VocabularyLists, ListsOfAnotherLengthThanTheTokensAreRefused) {
  for (const size_t size : {1, 3, 5}) {
    expect_refused("scores", std::to_string(size) + " entries for 4 tokens",
                   [size](GgufWriter& w, const std::string& key) {
                     w.add_array<float>(key, GgufType::f32, std::vector<float>(size));
                   });
    expect_refused("token_type", std::to_string(size) + " entries for 4 tokens",
                   [size](GgufWriter& w, const std::string& key) {
                     w.add_array<int32_t>(key, GgufType::i32, std::vector<int32_t>(size, 1));
                   });
  }
  for (const char* key : {"scores", "token_type"}) {
    Entries entries = good_entries();
    entries.erase(key);
    EXPECT_THAT(Tokenizer::create(read(entries).value()).status().message(),
                HasSubstr("tokenizer.ggml." + std::string(key) + " is missing"));
  }
}

TEST(VocabularyLists, RepeatedTokensAndScoresThatAreNoNumbersAreRefused) {
  expect_refused("tokens", "[3] repeats the token 1", [](GgufWriter& w, const std::string& key) {
    w.add_strings(key, {"<unk>", "<s>", "</s>", "<s>"});
  });
  expect_refused("scores", "[2] is not finite", [](GgufWriter& w, const std::string& key) {
    w.add_array<float>(key, GgufType::f32, {0, 0, std::numeric_limits<float>::quiet_NaN(), 0});
  });
  for (const int32_t type : {-1, 0, 7}) {
    expect_refused("token_type", std::to_string(type),
                   [type](GgufWriter& w, const std::string& key) {
                     w.add_array<int32_t>(key, GgufType::i32, {2, 3, 3, type});
                   });
  }
  // In 32 bits it would be the type 1.
  expect_refused("token_type", "4294967297", [](GgufWriter& w, const std::string& key) {
    w.add_array<int64_t>(key, GgufType::i64, {2, 3, 3, (int64_t{1} << 32) + 1});
  });
}

TEST(VocabularyLists, IdsOutsideItAreRefused) {
  for (const std::string key :
       {"bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"}) {
    for (const int64_t id : {int64_t{4}, int64_t{1} << 31, (int64_t{1} << 32) + 1, int64_t{-1}}) {
      expect_refused(key, std::to_string(id), [id](GgufWriter& w, const std::string& name) {
        w.add_value(name, GgufType::i64, id);
      });
    }
    expect_refused(key, "2147483648",
                   [](GgufWriter& w, const std::string& name) { w.add_u32(name, 1U << 31); });
  }
}

}  // namespace
}  // namespace kvik
