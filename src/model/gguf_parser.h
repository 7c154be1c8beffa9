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

// One pass over the bytes. Nothing is ever allocated from a number that the file merely claims:
// lists grow as entries are read.
class GgufParser {
 public:
  explicit GgufParser(GgufFile& file) : file_(file), bytes_(file.bytes_) {}
  Status parse();

 private:
  Status parse_header();
  Status parse_metadata();
  Status parse_value(std::string_view key, GgufValue& value);
  Status parse_array(std::string_view key, GgufValue& value);
  Status parse_alignment();
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
