// Checks the bytes of a GGUF file and fills a GgufFile with views of them.
#pragma once

#include <string>

#include "kvik/model/gguf.h"
#include "model/unaligned.h"

namespace kvik {

// Bytes of one scalar; 0 for strings, arrays and unknown numbers.
int64_t gguf_scalar_bytes(GgufType type);

// A name from a file made fit for a message: quoted, shortened, without control characters.
std::string quoted(std::string_view name);

// One part of a model on its way into the whole.
struct GgufPart {
  std::string name;  // for messages: the path
  GgufFile file;
};

// Makes one file of the parts of a model.
class GgufPartJoiner {
 public:
  // Errors: corrupt, naming the part that does not belong to the first, or stands in another place.
  // Requires: at least one part.
  static Result<GgufFile> join(std::vector<GgufPart> parts);
  // The path of part `part`, from 0, of the model whose first part has the path `first`. Errors:
  // invalid_argument for a path without the numbers of a first part.
  static Result<std::string> path_of(const std::string& first, int part, int num_parts);
  // ok, or why a file that was opened by its own name is not the first part.
  static Status check_first(const GgufFile& file, const std::string& path);
  static int num_parts(const GgufFile& file) { return split_of(file).num_parts; }

 private:
  static GgufFile::Split split_of(const GgufFile& file) {
    return file.split_.value_or(GgufFile::Split{});
  }
  static Status check_split(const GgufPart& first, const GgufPart& part, int idx);
  static Status check_metadata(const GgufPart& first, const GgufPart& part);
  static Status index_tensors(GgufFile& file);
};

// One pass over the bytes. Nothing is ever allocated from a number that the file merely claims:
// lists grow as entries are read.
class GgufParser {
 public:
  // Requires: `file` holds one part and nothing else.
  explicit GgufParser(GgufFile& file) : file_(file), bytes_(file.parts_.front()) {}
  Status parse();

 private:
  Status parse_header();
  Status parse_metadata();
  Status parse_value(std::string_view key, GgufValue& value);
  Status parse_array(std::string_view key, GgufValue& value);
  Status parse_alignment();
  Status parse_split();
  Status parse_tensor_infos();
  Status parse_tensor_info(GgufTensor& tensor);
  Status place_tensors();
  Status place_tensor(GgufTensor& tensor, int64_t data_begin);
  Status check_overlaps() const;

  int64_t remaining() const { return static_cast<int64_t>(bytes_.size()) - position_; }
  Status cut_short(std::string_view inside) const;
  // `inside` names what is being read, for the message of a file that ends there.
  template <class T>
  Status read(T& value, std::string_view inside);
  Status read_string(std::string_view& text, std::string_view inside);
  Status skip_strings(int64_t count, std::string_view inside);

  GgufFile& file_;
  std::span<const std::byte> bytes_;
  int64_t position_ = 0;
  uint64_t num_metadata_ = 0;
  uint64_t num_tensors_ = 0;
};

}  // namespace kvik
