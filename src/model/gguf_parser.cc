#include "model/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "kvik/core/checked_math.h"
#include "kvik/model/ggml_type.h"

namespace kvik {
namespace {

constexpr int64_t kDefaultAlignment = 32;
constexpr size_t kMaxNameBytes = 65535;
// The least that an entry takes in the file: lengths, numbers and one byte of name.
constexpr uint64_t kMinMetadataBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 4 + 8;

Status corrupt(std::string message) { return {StatusCode::corrupt, std::move(message)}; }

std::string at(int64_t offset) { return " at offset " + std::to_string(offset); }

Status check_magic(std::string_view magic) {
  if (magic == "GGUF") return {};
  if (magic == "lmgg" || magic == "fmgg" || magic == "tjgg" || magic == "algg") {
    return unsupported("the file is in a GGML format older than GGUF; convert it to GGUF again");
  }
  if (magic == "FUGG") return unsupported("the file is big-endian GGUF; convert it again");
  return corrupt("not a GGUF file: it begins with " + quoted(magic) + " instead of \"GGUF\"");
}

Status check_version(uint32_t version) {
  if (version == 2 || version == 3) return {};
  if (version == 1) return unsupported("GGUF version 1 is not supported; convert the model again");
  // A byte-swapped small number has its low half empty.
  if (version != 0 && (version & 0xffffu) == 0) {
    return unsupported("the file is big-endian GGUF; convert it for a little-endian machine");
  }
  return unsupported("GGUF version " + std::to_string(version) +
                     " is not supported (2 and 3 are); update kvik or convert the model again");
}

// Indices of `items` in order of name; the status names the first name that occurs twice.
template <class Items, class NameOf>
Status index_by_name(const Items& items, NameOf name_of, std::string_view what,
                     std::vector<uint32_t>& order) {
  order.resize(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return name_of(items[a]) < name_of(items[b]); });
  const auto twice = std::adjacent_find(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return name_of(items[a]) == name_of(items[b]);
  });
  if (twice == order.end()) return {};
  return corrupt("the " + std::string(what) + " " + quoted(name_of(items[*twice])) +
                 " occurs twice");
}

}  // namespace

int64_t gguf_scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
      return 8;
    case GgufType::string:
    case GgufType::array:
      return 0;
  }
  return 0;
}

std::string quoted(std::string_view name) {
  constexpr size_t kMost = 80;
  std::string text = "\"";
  for (const char c : name.substr(0, kMost)) {
    if (c >= ' ' && c <= '~' && c != '"' && c != '\\') {
      text += c;
      continue;
    }
    char written[8];
    std::snprintf(written, sizeof written, "\\x%02x", static_cast<unsigned char>(c));
    text += written;
  }
  return text + (name.size() > kMost ? "...\"" : "\"");
}

Status GgufParser::cut_short(std::string_view inside) const {
  return corrupt("the file ends after " + std::to_string(bytes_.size()) + " bytes, inside " +
                 std::string(inside) + at(position_) + "; it is cut short, fetch it again");
}

template <class T>
Status GgufParser::read(T& value, std::string_view inside) {
  if (remaining() < static_cast<int64_t>(sizeof value)) return cut_short(inside);
  value = load_unaligned<T>(bytes_.data() + position_);
  position_ += static_cast<int64_t>(sizeof value);
  return {};
}

Status GgufParser::read_string(std::string_view& text, std::string_view inside) {
  uint64_t length = 0;
  if (Status s = read(length, inside); !s.ok()) return s;
  if (length > static_cast<uint64_t>(remaining())) {
    return corrupt(std::string(inside) + at(position_) + " claims a string of " +
                   std::to_string(length) + " bytes, but only " + std::to_string(remaining()) +
                   " are left in the file");
  }
  text = {reinterpret_cast<const char*>(bytes_.data() + position_), static_cast<size_t>(length)};
  position_ += static_cast<int64_t>(length);
  return {};
}

Status GgufParser::parse() {
  if (Status s = parse_header(); !s.ok()) return s;
  if (Status s = parse_metadata(); !s.ok()) return s;
  if (Status s = parse_alignment(); !s.ok()) return s;
  if (Status s = parse_split(); !s.ok()) return s;
  if (Status s = parse_tensor_infos(); !s.ok()) return s;
  return place_tensors();
}

Status GgufParser::parse_header() {
  if (bytes_.empty()) return corrupt("the file is empty");
  const std::string_view magic(reinterpret_cast<const char*>(bytes_.data()),
                               std::min<size_t>(bytes_.size(), 4));
  if (Status s = check_magic(magic); !s.ok()) return s;
  position_ = 4;
  if (Status s = read(file_.version_, "the header"); !s.ok()) return s;
  if (Status s = check_version(file_.version_); !s.ok()) return s;
  if (Status s = read(num_tensors_, "the header"); !s.ok()) return s;
  if (Status s = read(num_metadata_, "the header"); !s.ok()) return s;

  constexpr uint64_t kMostEntries = std::numeric_limits<uint32_t>::max();
  const auto left = static_cast<uint64_t>(remaining());
  if (num_metadata_ > std::min(kMostEntries, left / kMinMetadataBytes)) {
    return corrupt("the header claims " + std::to_string(num_metadata_) +
                   " metadata entries; a file of " + std::to_string(bytes_.size()) +
                   " bytes cannot hold them");
  }
  if (num_tensors_ > std::min(kMostEntries, left / kMinTensorInfoBytes)) {
    return corrupt("the header claims " + std::to_string(num_tensors_) + " tensors; a file of " +
                   std::to_string(bytes_.size()) + " bytes cannot hold them");
  }
  return {};
}

Status GgufParser::parse_metadata() {
  for (uint64_t i = 0; i < num_metadata_; ++i) {
    GgufEntry entry;
    const int64_t begin = position_;
    if (Status s = read_string(entry.key, "a metadata key"); !s.ok()) return s;
    if (entry.key.empty() || entry.key.size() > kMaxNameBytes) {
      return corrupt("the metadata key" + at(begin) + " has " + std::to_string(entry.key.size()) +
                     " bytes; 1 to 65535 are allowed");
    }
    if (Status s = parse_value(entry.key, entry.value); !s.ok()) return s;
    file_.metadata_.push_back(entry);
  }
  return index_by_name(
      file_.metadata_, [](const GgufEntry& e) { return e.key; }, "metadata key",
      file_.metadata_by_key_);
}

Status GgufParser::parse_value(std::string_view key, GgufValue& value) {
  const std::string inside = "the value of metadata key " + quoted(key);
  uint32_t type = 0;
  if (Status s = read(type, inside); !s.ok()) return s;
  value.type = static_cast<GgufType>(type);
  if (value.type == GgufType::array) return parse_array(key, value);

  const int64_t begin = position_;
  if (value.type == GgufType::string) {
    if (Status s = skip_strings(1, inside); !s.ok()) return s;
  } else {
    const int64_t size = gguf_scalar_bytes(value.type);
    if (size == 0) {
      return corrupt("metadata key " + quoted(key) + at(begin - 4) + " has the unknown type " +
                     std::to_string(type));
    }
    if (remaining() < size) return cut_short(inside);
    position_ += size;
  }
  value.bytes = bytes_.subspan(static_cast<size_t>(begin), static_cast<size_t>(position_ - begin));
  if (value.type == GgufType::boolean && value.bytes[0] > std::byte{1}) {
    return corrupt(inside + at(begin) + " is a boolean that is neither 0 nor 1");
  }
  return {};
}

Status GgufParser::parse_array(std::string_view key, GgufValue& value) {
  const std::string inside = "the array of metadata key " + quoted(key);
  uint32_t type = 0;
  uint64_t count = 0;
  if (Status s = read(type, inside); !s.ok()) return s;
  if (Status s = read(count, inside); !s.ok()) return s;
  value.type = static_cast<GgufType>(type);
  value.is_array = true;
  if (value.type == GgufType::array) {
    return unsupported(inside + at(position_) + " holds arrays; nested arrays are not supported");
  }
  const bool strings = value.type == GgufType::string;
  const int64_t least = strings ? 8 : gguf_scalar_bytes(value.type);
  if (least == 0) {
    return corrupt(inside + at(position_) + " has the unknown element type " +
                   std::to_string(type));
  }
  if (count > static_cast<uint64_t>(remaining() / least)) {
    return corrupt(inside + at(position_) + " claims " + std::to_string(count) +
                   " elements, but only " + std::to_string(remaining()) +
                   " bytes are left in the file");
  }
  value.count = static_cast<int64_t>(count);
  const int64_t begin = position_;
  if (strings) {
    if (Status s = skip_strings(value.count, inside); !s.ok()) return s;
  } else {
    position_ += value.count * least;
  }
  value.bytes = bytes_.subspan(static_cast<size_t>(begin), static_cast<size_t>(position_ - begin));
  if (value.type == GgufType::boolean &&
      std::any_of(value.bytes.begin(), value.bytes.end(),
                  [](std::byte b) { return b > std::byte{1}; })) {
    return corrupt(inside + at(begin) + " holds a boolean that is neither 0 nor 1");
  }
  return {};
}

Status GgufParser::skip_strings(int64_t count, std::string_view inside) {
  std::string_view ignored;
  for (int64_t i = 0; i < count; ++i) {
    if (Status s = read_string(ignored, inside); !s.ok()) return s;
  }
  return {};
}

Status GgufParser::parse_alignment() {
  file_.alignment_ = kDefaultAlignment;
  constexpr std::string_view kKey = "general.alignment";
  if (file_.find(kKey) == nullptr) return {};
  const Result<int64_t> alignment = file_.integer(kKey);
  if (!alignment.ok()) return alignment.status();
  file_.alignment_ = alignment.value();
  if (file_.alignment_ <= 0 || !std::has_single_bit(static_cast<uint64_t>(file_.alignment_))) {
    return corrupt("general.alignment is " + std::to_string(file_.alignment_) +
                   "; it must be a power of two");
  }
  return {};
}

Status GgufParser::parse_split() {
  constexpr std::string_view kPart = "split.no";
  constexpr std::string_view kParts = "split.count";
  constexpr std::string_view kTensors = "split.tensors.count";
  if (file_.find(kPart) == nullptr && file_.find(kParts) == nullptr &&
      file_.find(kTensors) == nullptr) {
    return {};
  }
  if (file_.find(kParts) == nullptr) {
    return corrupt("the file has keys of a model in several files, but no \"split.count\"");
  }
  const Result<int64_t> num_parts = file_.integer(kParts);
  if (!num_parts.ok()) return num_parts.status();
  // Converters that leave a model whole write 0 or 1.
  constexpr int64_t kMostParts = 65535;
  if (*num_parts < 0 || *num_parts > kMostParts) {
    return corrupt("split.count is " + std::to_string(*num_parts) + "; it must lie in 0 to 65535");
  }
  GgufFile::Split split;
  split.num_parts = std::max(1, static_cast<int>(*num_parts));
  const bool needs_part = split.num_parts > 1;
  const Result<int64_t> part = needs_part ? file_.integer(kPart) : file_.integer_or(kPart, 0);
  if (!part.ok()) return Status(StatusCode::corrupt, part.status().message());
  if (*part < 0 || *part >= split.num_parts) {
    return corrupt("split.no is " + std::to_string(*part) + ", but split.count is " +
                   std::to_string(*num_parts) + "; parts are counted from 0");
  }
  split.part = static_cast<int>(*part);
  if (file_.find(kTensors) != nullptr) {
    const Result<int64_t> num_tensors = file_.integer(kTensors);
    if (!num_tensors.ok()) return num_tensors.status();
    split.num_tensors = *num_tensors;
  }
  file_.split_ = split;
  return {};
}

Status GgufParser::parse_tensor_infos() {
  for (uint64_t i = 0; i < num_tensors_; ++i) {
    GgufTensor tensor;
    if (Status s = parse_tensor_info(tensor); !s.ok()) return s;
    file_.tensors_.push_back(tensor);
  }
  return index_by_name(
      file_.tensors_, [](const GgufTensor& t) { return t.name; }, "tensor", file_.tensors_by_name_);
}

Status GgufParser::parse_tensor_info(GgufTensor& tensor) {
  const int64_t begin = position_;
  if (Status s = read_string(tensor.name, "a tensor name"); !s.ok()) return s;
  if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes) {
    return corrupt("the tensor name" + at(begin) + " has " + std::to_string(tensor.name.size()) +
                   " bytes; 1 to 65535 are allowed");
  }
  const std::string inside = "the description of tensor " + quoted(tensor.name);
  uint32_t rank = 0;
  if (Status s = read(rank, inside); !s.ok()) return s;
  if (rank > GgufTensor::kMaxRank) {
    return corrupt(inside + at(begin) + " claims " + std::to_string(rank) +
                   " dimensions; at most 4 are allowed");
  }
  tensor.rank = static_cast<int>(rank);
  for (uint32_t d = 0; d < rank; ++d) {
    uint64_t size = 0;
    if (Status s = read(size, inside); !s.ok()) return s;
    if (size == 0 || size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return corrupt(inside + at(begin) + " has a dimension of " + std::to_string(size));
    }
    tensor.shape[d] = static_cast<int64_t>(size);
  }
  if (Status s = read(tensor.type, inside); !s.ok()) return s;
  uint64_t offset = 0;
  if (Status s = read(offset, inside); !s.ok()) return s;
  if (offset > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return corrupt(inside + at(begin) + " places it at " + std::to_string(offset) +
                   ", outside any file");
  }
  // Relative to the data section for now: where that begins is known after the last description.
  tensor.file_offset = static_cast<int64_t>(offset);
  return {};
}

Status GgufParser::place_tensors() {
  const std::optional<int64_t> padded = checked_sum({position_, file_.alignment_ - 1});
  if (!padded.has_value()) return corrupt("general.alignment is larger than any file");
  const int64_t data_begin = *padded / file_.alignment_ * file_.alignment_;
  for (GgufTensor& tensor : file_.tensors_) {
    if (Status s = place_tensor(tensor, data_begin); !s.ok()) return s;
  }
  return check_overlaps();
}

Status GgufParser::place_tensor(GgufTensor& tensor, int64_t data_begin) {
  const std::string name = "tensor " + quoted(tensor.name);
  if (tensor.file_offset % file_.alignment_ != 0) {
    return corrupt(name + " is at data offset " + std::to_string(tensor.file_offset) +
                   ", not a multiple of the alignment " + std::to_string(file_.alignment_));
  }
  const auto [row, rows_a, rows_b, rows_c] = tensor.shape;
  // Without a known type the size is unknown too; it then holds at least one byte.
  int64_t needed = 1;
  const std::optional<int64_t> elements = checked_product({row, rows_a, rows_b, rows_c});
  if (!elements.has_value()) return corrupt(name + " claims more elements than fit in 64 bits");
  if (const GgmlTypeInfo* info = ggml_type_info(tensor.type); info != nullptr) {
    const std::optional<int64_t> row_bytes = ggml_row_bytes(*info, row);
    if (!row_bytes.has_value()) {
      return corrupt(name + " has rows of " + std::to_string(row) + " elements; type " +
                     std::string(info->name) + " needs a multiple of " +
                     std::to_string(info->block_elements));
    }
    tensor.num_bytes = checked_product({*row_bytes, rows_a, rows_b, rows_c});
    if (!tensor.num_bytes.has_value()) {
      return corrupt(name + " claims more bytes than fit in 64 bits");
    }
    needed = *tensor.num_bytes;
  }
  const std::optional<int64_t> end = checked_sum({data_begin, tensor.file_offset, needed});
  if (!end.has_value() || *end > file_.file_bytes()) {
    return corrupt(name + " needs " + std::to_string(needed) + " bytes at data offset " +
                   std::to_string(tensor.file_offset) + " (the data begins at " +
                   std::to_string(data_begin) + "), but the file has only " +
                   std::to_string(file_.file_bytes()) + " bytes; it is cut short, fetch it again");
  }
  tensor.file_offset += data_begin;
  return {};
}

Status GgufParser::check_overlaps() const {
  std::vector<const GgufTensor*> order;
  for (const GgufTensor& tensor : file_.tensors_) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return a->file_offset < b->file_offset;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = *order[i - 1];
    if (before.file_offset + before.num_bytes.value_or(1) > order[i]->file_offset) {
      return corrupt("tensors " + quoted(before.name) + " and " + quoted(order[i]->name) +
                     " overlap" + at(order[i]->file_offset));
    }
  }
  return {};
}

}  // namespace kvik
