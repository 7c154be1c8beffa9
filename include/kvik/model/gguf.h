// Reader of GGUF model files, versions 2 and 3, little-endian: metadata and tensor directory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// Numbers as they stand in the file.
enum class GgufType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

// "u8", "string", ...; "unknown" for a number outside the list.
KVIK_API std::string_view gguf_type_name(GgufType type);

// One metadata value, as a view of the file. Its bytes have been checked against its type.
struct GgufValue {
  GgufType type = GgufType::u8;  // of the value, or of each element of an array; never `array`
  bool is_array = false;
  int64_t count = 1;                 // elements; 1 unless an array
  std::span<const std::byte> bytes;  // little-endian, unaligned; strings: u64 length, then bytes
};

struct GgufEntry {
  std::string_view key;
  GgufValue value;
};

struct GgufTensor {
  static constexpr int kMaxRank = 4;

  std::string_view name;
  uint32_t type = 0;  // ggml type number; see ggml_type_info
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{1, 1, 1, 1};  // GGUF order: shape[0] is the row length
  int part = 0;                      // of a model in several files, from 0; see GgufFile::num_parts
  int64_t file_offset = 0;           // of its first byte in that part
  std::optional<int64_t> num_bytes;  // unset: the type is unknown, so is its size
};

// A checked file, or a model that lies in several (keys split.*): then its metadata is that of the
// first part, and its tensors are those of all parts. Strings, values and tensor bytes are views of
// the mapping (or of the memory given to parse) and stay valid when the object moves, until it is
// destroyed. Threads: const members may be called from any number of threads.
class KVIK_API GgufFile {
 public:
  // Maps the file privately and read-only and checks it. The file must not shrink while mapped (the
  // system would raise SIGBUS on access). The first part of a model in several files,
  // NAME-00001-of-0000M.gguf, brings the others, which lie beside it under the names that follow.
  // Errors: io_error (a part that is missing among them); corrupt (cut short, sizes that contradict
  // the file, duplicate names, parts that do not belong together, ...), naming the file and the
  // offset or tensor; unsupported (version 1, big-endian, other formats); invalid_argument for
  // another part than the first, naming the first.
  static Result<GgufFile> open(const std::string& path);

  // The same on memory that the caller owns and keeps alive and unchanged. One part alone is
  // accepted; is_complete() tells.
  static Result<GgufFile> parse(std::span<const std::byte> bytes);
  // The same for all parts of a model, in order.
  static Result<GgufFile> parse_parts(std::span<const std::span<const std::byte>> parts);

  GgufFile(GgufFile&&) noexcept = default;
  GgufFile& operator=(GgufFile&&) noexcept = default;
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  uint32_t version() const { return version_; }
  int64_t alignment() const { return alignment_; }
  int64_t file_bytes() const;  // of all parts
  int num_parts() const { return static_cast<int>(parts_.size()); }
  // Part `part`, from 0: its path (its place, where parse() or parse_parts() read it) and bytes.
  const std::string& part_name(int part) const { return part_names_[static_cast<size_t>(part)]; }
  int64_t part_bytes(int part) const {
    return static_cast<int64_t>(parts_[static_cast<size_t>(part)].size());
  }
  // False for one part of a model in several files without the others.
  bool is_complete() const { return num_parts() == split_.value_or(Split{}).num_parts; }

  // In file order.
  std::span<const GgufEntry> metadata() const { return metadata_; }
  std::span<const GgufTensor> tensors() const { return tensors_; }
  // nullptr when absent.
  const GgufValue* find(std::string_view key) const;
  const GgufTensor* find_tensor(std::string_view name) const;

  // The bytes of a tensor of this file. Errors: unsupported, when its type is unknown.
  Result<std::span<const std::byte>> tensor_bytes(const GgufTensor& tensor) const;

  // Typed access. Errors: invalid_argument for a missing key; corrupt for another type than asked
  // for, or an integer outside int64. The message names the key. Any integer type serves integer().
  Result<int64_t> integer(std::string_view key) const;
  Result<double> real(std::string_view key) const;  // f32 or f64
  Result<bool> boolean(std::string_view key) const;
  Result<std::string_view> string(std::string_view key) const;
  // Arrays of any integer type; of f32 or f64 (rounded to f32); of strings; of booleans.
  Result<std::vector<int64_t>> integers(std::string_view key) const;
  Result<std::vector<float>> reals(std::string_view key) const;
  Result<std::vector<std::string_view>> strings(std::string_view key) const;
  Result<std::vector<bool>> booleans(std::string_view key) const;

  // As above, except that a missing key gives the fallback; a wrong type remains an error.
  Result<int64_t> integer_or(std::string_view key, int64_t fallback) const;
  Result<double> real_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string_view> string_or(std::string_view key, std::string_view fallback) const;

 private:
  friend class GgufParser;
  friend class GgufPartJoiner;

  // What a file says of the parts that it is one of.
  struct Split {
    int part = 0;  // from 0
    int num_parts = 1;
    std::optional<int64_t> num_tensors;  // of all parts
  };

  class Mapping {
   public:
    Mapping() = default;
    explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
    Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
    Mapping& operator=(Mapping&& other) noexcept {
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Mapping();
    std::span<const std::byte> bytes() const { return bytes_; }

   private:
    std::span<const std::byte> bytes_;
  };

  GgufFile() = default;
  static Result<GgufFile> open_part(const std::string& path);
  Result<const GgufValue*> typed(std::string_view key, bool is_array, std::string_view wanted,
                                 bool (*accepts)(GgufType)) const;

  std::vector<Mapping> mappings_;                  // none for parse()
  std::vector<std::span<const std::byte>> parts_;  // the bytes of each
  std::vector<std::string> part_names_;            // one each
  std::optional<Split> split_;
  uint32_t version_ = 0;
  int64_t alignment_ = 0;
  std::vector<GgufEntry> metadata_;
  std::vector<GgufTensor> tensors_;
  std::vector<uint32_t> metadata_by_key_;  // indices in order of name
  std::vector<uint32_t> tensors_by_name_;
};

}  // namespace kvik
