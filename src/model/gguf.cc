#include "kvik/model/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "kvik/model/ggml_type.h"
#include "model/gguf_parser.h"

namespace kvik {
namespace {

bool is_integer(GgufType type) {
  return gguf_scalar_bytes(type) != 0 && type != GgufType::f32 && type != GgufType::f64 &&
         type != GgufType::boolean;
}
bool is_real(GgufType type) { return type == GgufType::f32 || type == GgufType::f64; }
bool is_boolean(GgufType type) { return type == GgufType::boolean; }
bool is_string(GgufType type) { return type == GgufType::string; }

// nullopt: a u64 beyond int64. Requires: is_integer(type).
std::optional<int64_t> integer_at(GgufType type, const std::byte* p) {
  switch (type) {
    case GgufType::u8:
      return load_unaligned<uint8_t>(p);
    case GgufType::i8:
      return load_unaligned<int8_t>(p);
    case GgufType::u16:
      return load_unaligned<uint16_t>(p);
    case GgufType::i16:
      return load_unaligned<int16_t>(p);
    case GgufType::u32:
      return load_unaligned<uint32_t>(p);
    case GgufType::i32:
      return load_unaligned<int32_t>(p);
    case GgufType::i64:
      return load_unaligned<int64_t>(p);
    case GgufType::u64: {
      const auto value = load_unaligned<uint64_t>(p);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      KVIK_CHECK(false, "not an integer type");
  }
  return std::nullopt;
}

double real_at(GgufType type, const std::byte* p) {
  return type == GgufType::f32 ? static_cast<double>(load_unaligned<float>(p))
                               : load_unaligned<double>(p);
}

// The string at p, and p moved past it. The parser has checked the length.
std::string_view next_string(const std::byte*& p) {
  const auto length = static_cast<size_t>(load_unaligned<uint64_t>(p));
  const std::string_view text(reinterpret_cast<const char*>(p + 8), length);
  p += 8 + length;
  return text;
}

Status too_large(std::string_view key) {
  return {StatusCode::corrupt, "metadata key " + quoted(key) + " holds an integer beyond 2^63"};
}

struct FileDescriptor {
  explicit FileDescriptor(int fd) : value(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (value >= 0) close(value);
  }
  int value;
};

Status io_error(const std::string& path, const std::string& what) {
  return {StatusCode::io_error, "cannot read " + path + ": " + what};
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  constexpr std::array<std::string_view, 13> kNames = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                       "i32", "f32", "bool", "string", "array",
                                                       "u64", "i64", "f64"};
  const auto number = static_cast<size_t>(type);
  return number < kNames.size() ? kNames[number] : "unknown";
}

GgufFile::Mapping::~Mapping() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<GgufFile> GgufFile::open_part(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.value < 0) return io_error(path, std::strerror(errno));
  struct stat info {};
  if (fstat(fd.value, &info) != 0) return io_error(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return io_error(path, "not a regular file");
  GgufFile file;
  file.parts_.emplace_back();
  file.part_names_.push_back(path);
  if (info.st_size > 0) {
    const auto size = static_cast<size_t>(info.st_size);
    void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.value, 0);
    if (mapped == MAP_FAILED) return io_error(path, std::strerror(errno));
    file.mappings_.push_back(Mapping({static_cast<const std::byte*>(mapped), size}));
    file.parts_.front() = file.mappings_.front().bytes();
  }
  if (Status s = GgufParser(file).parse(); !s.ok())
    return Status(s.code(), path + ": " + s.message());
  return file;
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  Result<GgufFile> first = open_part(path);
  if (!first.ok()) return first;
  if (Status s = GgufPartJoiner::check_first(*first, path); !s.ok()) return s;
  const int num_parts = GgufPartJoiner::num_parts(*first);
  std::vector<GgufPart> parts;
  parts.push_back({path, std::move(first).value()});
  for (int part = 1; part < num_parts; ++part) {
    const Result<std::string> name = GgufPartJoiner::path_of(path, part, num_parts);
    if (!name.ok()) return name.status();
    Result<GgufFile> file = open_part(*name);
    if (!file.ok()) {
      return Status(file.status().code(),
                    file.status().message() + " (part " + std::to_string(part + 1) + " of the " +
                        std::to_string(num_parts) + " of the model " + path + ")");
    }
    parts.push_back({*name, std::move(file).value()});
  }
  return GgufPartJoiner::join(std::move(parts));
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes) {
  GgufFile file;
  file.parts_.push_back(bytes);
  file.part_names_.emplace_back("part 1");
  if (Status s = GgufParser(file).parse(); !s.ok()) return s;
  return file;
}

Result<GgufFile> GgufFile::parse_parts(std::span<const std::span<const std::byte>> parts) {
  if (parts.empty()) return invalid_argument("a model has at least one part");
  std::vector<GgufPart> parsed;
  for (const std::span<const std::byte> bytes : parts) {
    const std::string name = "part " + std::to_string(parsed.size() + 1);
    Result<GgufFile> file = parse(bytes);
    if (!file.ok()) return Status(file.status().code(), name + ": " + file.status().message());
    parsed.push_back({name, std::move(file).value()});
  }
  return GgufPartJoiner::join(std::move(parsed));
}

int64_t GgufFile::file_bytes() const {
  int64_t bytes = 0;
  for (const std::span<const std::byte> part : parts_) bytes += static_cast<int64_t>(part.size());
  return bytes;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = std::lower_bound(
      metadata_by_key_.begin(), metadata_by_key_.end(), key,
      [this](uint32_t i, std::string_view wanted) { return metadata_[i].key < wanted; });
  if (it == metadata_by_key_.end() || metadata_[*it].key != key) return nullptr;
  return &metadata_[*it].value;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = std::lower_bound(
      tensors_by_name_.begin(), tensors_by_name_.end(), name,
      [this](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  if (it == tensors_by_name_.end() || tensors_[*it].name != name) return nullptr;
  return &tensors_[*it];
}

Result<std::span<const std::byte>> GgufFile::tensor_bytes(const GgufTensor& tensor) const {
  if (!tensor.num_bytes.has_value()) {
    return unsupported("tensor " + quoted(tensor.name) + " has the unknown type number " +
                       std::to_string(tensor.type) + "; quantize the model to a known type");
  }
  return parts_[static_cast<size_t>(tensor.part)].subspan(static_cast<size_t>(tensor.file_offset),
                                                          static_cast<size_t>(*tensor.num_bytes));
}

Result<const GgufValue*> GgufFile::typed(std::string_view key, bool is_array,
                                         std::string_view wanted, bool (*accepts)(GgufType)) const {
  const GgufValue* value = find(key);
  if (value == nullptr) {
    return invalid_argument("the model file has no metadata key " + quoted(key));
  }
  if (value->is_array != is_array || !accepts(value->type)) {
    const std::string found(gguf_type_name(value->type));
    return Status(StatusCode::corrupt, "metadata key " + quoted(key) + " has type " +
                                           (value->is_array ? "array of " + found : found) +
                                           ", expected " + (is_array ? "array of " : "") +
                                           std::string(wanted));
  }
  return value;
}

Result<int64_t> GgufFile::integer(std::string_view key) const {
  const Result<const GgufValue*> value = typed(key, false, "integer", is_integer);
  if (!value.ok()) return value.status();
  const std::optional<int64_t> number =
      integer_at(value.value()->type, value.value()->bytes.data());
  if (!number.has_value()) return too_large(key);
  return *number;
}

Result<double> GgufFile::real(std::string_view key) const {
  const Result<const GgufValue*> value = typed(key, false, "f32 or f64", is_real);
  if (!value.ok()) return value.status();
  return real_at(value.value()->type, value.value()->bytes.data());
}

Result<bool> GgufFile::boolean(std::string_view key) const {
  const Result<const GgufValue*> value = typed(key, false, "bool", is_boolean);
  if (!value.ok()) return value.status();
  return value.value()->bytes[0] != std::byte{0};
}

Result<std::string_view> GgufFile::string(std::string_view key) const {
  const Result<const GgufValue*> value = typed(key, false, "string", is_string);
  if (!value.ok()) return value.status();
  const std::byte* p = value.value()->bytes.data();
  return next_string(p);
}

Result<std::vector<int64_t>> GgufFile::integers(std::string_view key) const {
  const Result<const GgufValue*> value = typed(key, true, "integer", is_integer);
  if (!value.ok()) return value.status();
  const GgufValue& array = *value.value();
  std::vector<int64_t> numbers(static_cast<size_t>(array.count));
  const std::byte* p = array.bytes.data();
  for (int64_t& number : numbers) {
    const std::optional<int64_t> element = integer_at(array.type, p);
    if (!element.has_value()) return too_large(key);
    number = *element;
    p += gguf_scalar_bytes(array.type);
  }
  return numbers;
}

Result<std::vector<float>> GgufFile::reals(std::string_view key) const {
  const Result<const GgufValue*> value = typed(key, true, "f32 or f64", is_real);
  if (!value.ok()) return value.status();
  const GgufValue& array = *value.value();
  std::vector<float> numbers(static_cast<size_t>(array.count));
  const std::byte* p = array.bytes.data();
  for (float& number : numbers) {
    number = static_cast<float>(real_at(array.type, p));
    p += gguf_scalar_bytes(array.type);
  }
  return numbers;
}

Result<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  const Result<const GgufValue*> value = typed(key, true, "string", is_string);
  if (!value.ok()) return value.status();
  std::vector<std::string_view> texts(static_cast<size_t>(value.value()->count));
  const std::byte* p = value.value()->bytes.data();
  for (std::string_view& text : texts) text = next_string(p);
  return texts;
}

Result<std::vector<bool>> GgufFile::booleans(std::string_view key) const {
  const Result<const GgufValue*> value = typed(key, true, "bool", is_boolean);
  if (!value.ok()) return value.status();
  std::vector<bool> flags;
  for (const std::byte b : value.value()->bytes) flags.push_back(b != std::byte{0});
  return flags;
}

Result<int64_t> GgufFile::integer_or(std::string_view key, int64_t fallback) const {
  return find(key) == nullptr ? Result<int64_t>(fallback) : integer(key);
}

Result<double> GgufFile::real_or(std::string_view key, double fallback) const {
  return find(key) == nullptr ? Result<double>(fallback) : real(key);
}

Result<bool> GgufFile::boolean_or(std::string_view key, bool fallback) const {
  return find(key) == nullptr ? Result<bool>(fallback) : boolean(key);
}

Result<std::string_view> GgufFile::string_or(std::string_view key,
                                             std::string_view fallback) const {
  return find(key) == nullptr ? Result<std::string_view>(fallback) : string(key);
}

}  // namespace kvik
