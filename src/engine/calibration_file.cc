// The file of a key calibration; docs/calibration-file.md draws it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/hash.h"
#include "engine/calibration_text.h"
#include "kvik/core/checked_math.h"
#include "kvik/core/dtype.h"
#include "kvik/core/file_writer.h"
#include "kvik/engine/key_calibration.h"

namespace kvik {
namespace {

using internal::Hash128;
using internal::Hasher;

constexpr char kMagic[8] = {'K', 'V', 'I', 'K', 'C', 'A', 'L', '2'};
// Of a file; far above any model's.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// What the model's tokenizer makes of the text that comes with Kvik stands for the tokenizer.
void add_tokenizer(const Model& model, Hasher& hash) {
  const EncodeOptions options{.missing_byte = MissingByte::drop};
  for (const std::string_view text :
       {internal::calibration_prose(), internal::calibration_code()}) {
    const Result<std::vector<TokenId>> tokens = model.tokenizer().encode(text, options);
    if (!tokens.ok()) continue;
    for (const TokenId token : *tokens) hash.add_number(static_cast<uint64_t>(token));
    hash.add_number(tokens->size());
  }
}

Hash128 settings_fingerprint(const Model& model) {
  Hasher hash;
  hash.add_text(model.settings());
  add_tokenizer(model, hash);
  return hash.value();
}

struct Header {
  Hash128 fingerprint{}, settings{};
  uint32_t frame = 0, num_layers = 0, num_kv_heads = 0, head_dim = 0;
};
constexpr int64_t kHashBytes = sizeof(Hash128);
constexpr int64_t kHeaderBytes = 8 + 2 * kHashBytes + 4 * 4;

void put(std::vector<std::byte>& to, uint32_t x) {
  for (int i = 0; i < 4; ++i) to.push_back(static_cast<std::byte>(x >> (8 * i)));
}

void put(std::vector<std::byte>& to, const Hash128& hash) {
  to.insert(to.end(), hash.begin(), hash.end());
}

uint32_t get_number(const std::vector<std::byte>& from, size_t at) {
  uint32_t x = 0;
  for (size_t i = 0; i < 4; ++i) x |= static_cast<uint32_t>(from[at + i]) << (8 * i);
  return x;
}

Hash128 get_hash(const std::vector<std::byte>& from, size_t at) {
  Hash128 hash;
  std::memcpy(hash.data(), from.data() + at, hash.size());
  return hash;
}

void put_halves(std::vector<std::byte>& to, const std::vector<float>& values) {
  for (const float x : values) {
    std::byte bytes[2];
    store_float(DType::f16, bytes, x);
    to.insert(to.end(), bytes, bytes + 2);
  }
}

Status io_error(const std::string& path, const char* what) {
  return {StatusCode::io_error, path + ": " + what + " (" + std::strerror(errno) + ")"};
}

Hash128 checksum(const std::vector<std::byte>& bytes, size_t size) {
  return internal::hash_of(std::span(bytes.data(), size));
}

Result<std::vector<std::byte>> read_file(const std::string& path) {
  // Without waiting for a writer, where the path names a FIFO.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat about = {};
  if (fd < 0 || fstat(fd, &about) != 0) {
    Status status = io_error(path, "cannot open");
    if (fd >= 0) ::close(fd);
    return status;
  }
  if (!S_ISREG(about.st_mode)) {
    ::close(fd);
    return invalid_argument(path + ": not a regular file");
  }
  std::FILE* const file = fdopen(fd, "rb");
  if (file == nullptr) {
    ::close(fd);
    return io_error(path, "cannot open");
  }
  std::vector<std::byte> bytes;
  std::byte buffer[1 << 14];
  while (const size_t size = std::fread(buffer, 1, sizeof buffer, file)) {
    bytes.insert(bytes.end(), buffer, buffer + size);
    if (static_cast<int64_t>(bytes.size()) > kMaxFileBytes) break;
  }
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return io_error(path, "cannot read");
  return bytes;
}

Result<Header> read_header(const std::vector<std::byte>& bytes, const std::string& path) {
  const Status damaged(StatusCode::corrupt,
                       path +
                           ": no calibration file, or damaged; delete it, and kvik calibrate "
                           "makes another");
  const auto size = static_cast<int64_t>(bytes.size());
  if (size >= 8 && std::memcmp(bytes.data(), "KVIKCAL1", 8) == 0) {
    return invalid_argument(
        path +
        ": a calibration of version 1, which does not say for which settings "
        "of the model it was made; delete it, and kvik calibrate makes another");
  }
  if (size < kHeaderBytes + kHashBytes || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return damaged;
  }
  const Header header{get_hash(bytes, 8),    get_hash(bytes, 24),   get_number(bytes, 40),
                      get_number(bytes, 44), get_number(bytes, 48), get_number(bytes, 52)};
  const auto halves = checked_product(
      {int64_t{header.num_layers}, int64_t{header.num_kv_heads}, int64_t{header.head_dim}, 4});
  if (!halves || *halves > kMaxFileBytes || size != kHeaderBytes + *halves + kHashBytes) {
    return damaged;
  }
  const size_t hashed = bytes.size() - sizeof(Hash128);
  if (checksum(bytes, hashed) != get_hash(bytes, hashed)) return damaged;
  return header;
}

}  // namespace

Result<ModelFingerprint> model_fingerprint(const Model& model) {
  std::vector<const GgufTensor*> tensors;
  for (const GgufTensor& tensor : model.file().tensors()) tensors.push_back(&tensor);
  // By name: the order of a file and its cut into parts change nothing.
  std::sort(tensors.begin(), tensors.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->name < b->name; });
  Hasher hash;
  hash.add(settings_fingerprint(model));
  for (const GgufTensor* tensor : tensors) {
    hash.add_text(tensor->name);
    hash.add_number(static_cast<uint64_t>(tensor->type));
    for (const int64_t dim : tensor->shape) hash.add_number(static_cast<uint64_t>(dim));
    Result<std::span<const std::byte>> bytes = model.file().tensor_bytes(*tensor);
    if (!bytes.ok()) return bytes.status();
    hash.add(*bytes);
  }
  return hash.value();
}

std::string to_string(const ModelFingerprint& fingerprint) { return internal::hex(fingerprint); }

Status save_calibration(const KeyCalibration& calibration, const Model& model,
                        const std::string& path) {
  const ModelInfo& info = model.info();
  if (Status status = check(calibration, info.num_layers, info.num_kv_heads, info.head_dim_k);
      !status.ok()) {
    return status;
  }
  const Result<ModelFingerprint> fingerprint = model_fingerprint(model);
  if (!fingerprint.ok()) return fingerprint.status();
  std::vector<std::byte> bytes;
  for (const char c : kMagic) bytes.push_back(static_cast<std::byte>(c));
  put(bytes, *fingerprint);
  put(bytes, settings_fingerprint(model));
  for (const int x : {calibration.frame, info.num_layers, info.num_kv_heads, info.head_dim_k}) {
    put(bytes, static_cast<uint32_t>(x));
  }
  for (const LayerKeyCalibration& layer : calibration.layers) {
    put_halves(bytes, layer.centre);
    put_halves(bytes, layer.diagonal);
  }
  put(bytes, checksum(bytes, bytes.size()));
  return write_file(path, bytes);
}

Result<KeyCalibration> load_calibration(const Model& model, const std::string& path,
                                        const std::optional<ModelFingerprint>& known) {
  Result<std::vector<std::byte>> bytes = read_file(path);
  if (!bytes.ok()) return bytes.status();
  Result<Header> header = read_header(*bytes, path);
  if (!header.ok()) return header.status();
  const ModelInfo& info = model.info();
  if (header->settings != settings_fingerprint(model)) {
    return invalid_argument(path +
                            ": made for a model with other settings (shape, norms, RoPE, windows, "
                            "scales or tokenizer); make one with kvik calibrate");
  }
  const Result<ModelFingerprint> fingerprint =
      known ? Result<ModelFingerprint>(*known) : model_fingerprint(model);
  if (!fingerprint.ok()) return fingerprint.status();
  if (header->fingerprint != *fingerprint ||
      static_cast<int>(header->num_layers) != info.num_layers ||
      static_cast<int>(header->num_kv_heads) != info.num_kv_heads ||
      static_cast<int>(header->head_dim) != info.head_dim_k) {
    return invalid_argument(path +
                            ": made for a model with other weights; make one with kvik calibrate");
  }
  const size_t numbers = size_t{header->num_kv_heads} * header->head_dim;
  KeyCalibration calibration;
  calibration.frame = static_cast<int>(header->frame);
  const std::byte* next = bytes->data() + kHeaderBytes;
  for (int i = 0; i < info.num_layers; ++i) {
    const KeyRope rope = model.key_rope(i);
    LayerKeyCalibration layer;
    layer.pairs = rope.pairs;
    layer.frequencies.assign(rope.frequencies.begin(), rope.frequencies.end());
    for (std::vector<float>* values : {&layer.centre, &layer.diagonal}) {
      for (size_t d = 0; d < numbers; ++d, next += 2) {
        values->push_back(load_float(DType::f16, next));
      }
    }
    calibration.layers.push_back(std::move(layer));
  }
  if (Status status = check(calibration, info.num_layers, info.num_kv_heads, info.head_dim_k);
      !status.ok()) {
    return Status(StatusCode::corrupt, path + ": " + status.message());
  }
  return calibration;
}

}  // namespace kvik
