// The file of a key calibration; docs/calibration-file.md draws it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/calibration_text.h"
#include "kvik/core/checked_math.h"
#include "kvik/core/dtype.h"
#include "kvik/core/file_writer.h"
#include "kvik/engine/key_calibration.h"

namespace kvik {
namespace {

constexpr char kMagic[8] = {'K', 'V', 'I', 'K', 'C', 'A', 'L', '2'};
// Of a file; far above any model's.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// Fowler, Noll and Vo's hash, variant 1a, 64 bits.
class Fnv1a {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      hash_ = (hash_ ^ static_cast<uint64_t>(byte)) * 0x100000001b3U;
    }
  }
  void add(std::string_view text) {
    add(std::as_bytes(std::span(text)));
    add_number(text.size());
  }
  void add_number(uint64_t x) {
    for (int i = 0; i < 8; ++i) add_byte(static_cast<uint8_t>(x >> (8 * i)));
  }
  uint64_t value() const { return hash_; }

 private:
  void add_byte(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3U; }
  uint64_t hash_ = 0xcbf29ce484222325U;
};

// Sixteen multiply-and-turn chains over words of 8 bytes, so that weights are read at the speed of
// memory; the chains are joined by FNV-1a. Every step is one to one in the word.
uint64_t hash_of_weights(std::span<const std::byte> bytes) {
  constexpr size_t kChains = 16;
  constexpr size_t kStep = kChains * 8;
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15U;
  std::array<uint64_t, kChains> chains{};
  for (size_t i = 0; i < kChains; ++i) chains[i] = kFactor * (i + 1);
  size_t at = 0;
  for (; bytes.size() - at >= kStep; at += kStep) {
    for (size_t i = 0; i < kChains; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at + 8 * i, 8);
      chains[i] = std::rotl(chains[i] ^ word, 29) * kFactor;
    }
  }
  Fnv1a hash;
  for (const uint64_t chain : chains) hash.add_number(chain);
  hash.add(bytes.subspan(at));
  hash.add_number(bytes.size());
  return hash.value();
}

// What the model's tokenizer makes of the text that comes with Kvik stands for the tokenizer.
void add_tokenizer(const Model& model, Fnv1a& hash) {
  const EncodeOptions options{.missing_byte = MissingByte::drop};
  for (const std::string_view text :
       {internal::calibration_prose(), internal::calibration_code()}) {
    const Result<std::vector<TokenId>> tokens = model.tokenizer().encode(text, options);
    if (!tokens.ok()) continue;
    for (const TokenId token : *tokens) hash.add_number(static_cast<uint64_t>(token));
    hash.add_number(tokens->size());
  }
}

uint64_t settings_fingerprint(const Model& model) {
  Fnv1a hash;
  hash.add(model.settings());
  add_tokenizer(model, hash);
  return hash.value();
}

struct Header {
  uint64_t fingerprint = 0, settings = 0;
  uint32_t frame = 0, num_layers = 0, num_kv_heads = 0, head_dim = 0;
};
constexpr int64_t kHeaderBytes = 8 + 8 + 8 + 4 * 4;

void put(std::vector<std::byte>& to, uint64_t x, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) to.push_back(static_cast<std::byte>(x >> (8 * i)));
}

uint64_t get(const std::vector<std::byte>& from, size_t at, int num_bytes) {
  uint64_t x = 0;
  for (int i = 0; i < num_bytes; ++i) {
    x |= static_cast<uint64_t>(from[at + static_cast<size_t>(i)]) << (8 * i);
  }
  return x;
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

uint64_t hash_of(std::span<const std::byte> bytes) {
  Fnv1a hash;
  hash.add(bytes);
  return hash.value();
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

// Whole, with the checksum behind it: bytes that are damaged are called so.
bool is_version_1(const std::vector<std::byte>& bytes) {
  constexpr size_t kLeast = 40;
  if (bytes.size() < kLeast || std::memcmp(bytes.data(), "KVIKCAL1", 8) != 0) return false;
  const std::span<const std::byte> hashed(bytes.data(), bytes.size() - 8);
  return hash_of(hashed) == get(bytes, bytes.size() - 8, 8);
}

Result<Header> read_header(const std::vector<std::byte>& bytes, const std::string& path) {
  const Status damaged(StatusCode::corrupt,
                       path +
                           ": no calibration file, or damaged; delete it, and kvik calibrate "
                           "makes another");
  const auto size = static_cast<int64_t>(bytes.size());
  if (is_version_1(bytes)) {
    return invalid_argument(
        path +
        ": a calibration of version 1, which does not say for which settings "
        "of the model it was made; delete it, and kvik calibrate makes another");
  }
  if (size < kHeaderBytes + 8 || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return damaged;
  }
  const Header header{get(bytes, 8, 8),
                      get(bytes, 16, 8),
                      static_cast<uint32_t>(get(bytes, 24, 4)),
                      static_cast<uint32_t>(get(bytes, 28, 4)),
                      static_cast<uint32_t>(get(bytes, 32, 4)),
                      static_cast<uint32_t>(get(bytes, 36, 4))};
  const auto halves = checked_product(
      {int64_t{header.num_layers}, int64_t{header.num_kv_heads}, int64_t{header.head_dim}, 4});
  if (!halves || *halves > kMaxFileBytes || size != kHeaderBytes + *halves + 8) return damaged;
  const std::span<const std::byte> hashed(bytes.data(), bytes.size() - 8);
  if (hash_of(hashed) != get(bytes, bytes.size() - 8, 8)) return damaged;
  return header;
}

}  // namespace

Result<uint64_t> model_fingerprint(const Model& model) {
  std::vector<const GgufTensor*> tensors;
  for (const GgufTensor& tensor : model.file().tensors()) tensors.push_back(&tensor);
  // By name: the order of a file and its cut into parts change nothing.
  std::sort(tensors.begin(), tensors.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->name < b->name; });
  Fnv1a hash;
  hash.add_number(settings_fingerprint(model));
  for (const GgufTensor* tensor : tensors) {
    hash.add(tensor->name);
    hash.add_number(static_cast<uint64_t>(tensor->type));
    for (const int64_t dim : tensor->shape) hash.add_number(static_cast<uint64_t>(dim));
    Result<std::span<const std::byte>> bytes = model.file().tensor_bytes(*tensor);
    if (!bytes.ok()) return bytes.status();
    hash.add_number(hash_of_weights(*bytes));
  }
  return hash.value();
}

Status save_calibration(const KeyCalibration& calibration, const Model& model,
                        const std::string& path) {
  const ModelInfo& info = model.info();
  if (Status status = check(calibration, info.num_layers, info.num_kv_heads, info.head_dim_k);
      !status.ok()) {
    return status;
  }
  Result<uint64_t> fingerprint = model_fingerprint(model);
  if (!fingerprint.ok()) return fingerprint.status();
  std::vector<std::byte> bytes;
  for (const char c : kMagic) bytes.push_back(static_cast<std::byte>(c));
  put(bytes, *fingerprint, 8);
  put(bytes, settings_fingerprint(model), 8);
  for (const int x : {calibration.frame, info.num_layers, info.num_kv_heads, info.head_dim_k}) {
    put(bytes, static_cast<uint64_t>(x), 4);
  }
  for (const LayerKeyCalibration& layer : calibration.layers) {
    put_halves(bytes, layer.centre);
    put_halves(bytes, layer.diagonal);
  }
  put(bytes, hash_of(bytes), 8);
  return write_file(path, bytes);
}

Result<KeyCalibration> load_calibration(const Model& model, const std::string& path) {
  Result<std::vector<std::byte>> bytes = read_file(path);
  if (!bytes.ok()) return bytes.status();
  Result<Header> header = read_header(*bytes, path);
  if (!header.ok()) return header.status();
  Result<uint64_t> fingerprint = model_fingerprint(model);
  if (!fingerprint.ok()) return fingerprint.status();
  const ModelInfo& info = model.info();
  if (header->settings != settings_fingerprint(model)) {
    return invalid_argument(path +
                            ": made for a model with other settings (shape, norms, RoPE, windows, "
                            "scales or tokenizer); make one with kvik calibrate");
  }
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
