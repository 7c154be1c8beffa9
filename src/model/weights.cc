#include "kvik/model/weights.h"

#include <array>
#include <string>

#include "kvik/core/checked_math.h"
#include "kvik/model/ggml_type.h"
#include "kvik/model/gguf.h"
#include "model/blocks_32.h"
#include "model/blocks_k.h"
#include "model/blocks_plain.h"
#include "model/gguf_parser.h"

namespace kvik {
namespace {

struct TypeEntry {
  std::string_view name;
  uint32_t ggml_type;
  int64_t block_elements;
  int64_t block_bytes;
  void (*decode)(const std::byte* row, int64_t num_blocks, float* out) noexcept;
  // Index of the first block with a value that is not finite; num_blocks if there is none.
  int64_t (*first_bad_block)(const std::byte* data, int64_t num_blocks) noexcept;
};

template <class Block>
void decode_blocks(const std::byte* row, int64_t num_blocks, float* out) noexcept {
  for (int64_t b = 0; b < num_blocks; ++b) {
    Block::decode(row + b * Block::kBytes, out + b * Block::kElements);
  }
}

template <class Block>
int64_t first_bad_block(const std::byte* data, int64_t num_blocks) noexcept {
  for (int64_t b = 0; b < num_blocks; ++b) {
    if (!Block::finite(data + b * Block::kBytes)) return b;
  }
  return num_blocks;
}

template <class Block>
constexpr TypeEntry entry(std::string_view name, uint32_t ggml_type) {
  return {name,
          ggml_type,
          Block::kElements,
          Block::kBytes,
          decode_blocks<Block>,
          first_bad_block<Block>};
}

// In the order of WeightType.
constexpr std::array<TypeEntry, kNumWeightTypes> kTypes = {
    entry<internal::F32Block>("f32", 0),       entry<internal::F16Block>("f16", 1),
    entry<internal::Bf16Block>("bf16", 30),    entry<internal::Q8_0Block>("q8_0", 8),
    entry<internal::Q4_0Block>("q4_0", 2),     entry<internal::Q4_1Block>("q4_1", 3),
    entry<internal::Q5_0Block>("q5_0", 6),     entry<internal::Q5_1Block>("q5_1", 7),
    entry<internal::Iq4NlBlock>("iq4_nl", 20), entry<internal::Q2_KBlock>("q2_k", 10),
    entry<internal::Q3_KBlock>("q3_k", 11),    entry<internal::Q4_KBlock>("q4_k", 12),
    entry<internal::Q5_KBlock>("q5_k", 13),    entry<internal::Q6_KBlock>("q6_k", 14)};

const TypeEntry& entry_of(WeightType type) { return kTypes[static_cast<size_t>(type)]; }

}  // namespace

std::string_view weight_type_name(WeightType type) { return entry_of(type).name; }

std::optional<WeightType> weight_type_from_ggml(uint32_t ggml_type) {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].ggml_type == ggml_type) return static_cast<WeightType>(i);
  }
  return std::nullopt;
}

int64_t weight_block_values(WeightType type) { return entry_of(type).block_elements; }

std::optional<int64_t> weight_row_bytes(WeightType type, int64_t cols) {
  const TypeEntry& t = entry_of(type);
  if (cols < 0 || cols % t.block_elements != 0) return std::nullopt;
  return checked_product({cols / t.block_elements, t.block_bytes});
}

Result<Weight> Weight::make(WeightType type, int64_t rows, int64_t cols,
                            std::span<const std::byte> bytes) {
  const std::string shape = std::to_string(rows) + " x " + std::to_string(cols) +
                            " weight of type " + std::string(weight_type_name(type));
  const std::optional<int64_t> row_bytes = weight_row_bytes(type, cols);
  if (rows < 1 || cols < 1 || !row_bytes.has_value()) {
    return invalid_argument("a " + shape + " does not exist: rows must be whole blocks of " +
                            std::to_string(entry_of(type).block_elements) + " values");
  }
  const std::optional<int64_t> size = checked_product({rows, *row_bytes});
  if (!size.has_value() || *size != static_cast<int64_t>(bytes.size())) {
    return invalid_argument("a " + shape + " was given " + std::to_string(bytes.size()) +
                            " bytes, which is not its size");
  }
  Weight weight;
  weight.type_ = type;
  weight.rows_ = rows;
  weight.cols_ = cols;
  weight.row_bytes_ = *row_bytes;
  weight.data_ = bytes.data();
  return weight;
}

Result<Weight> find_weight(const GgufFile& file, std::string_view name) {
  const GgufTensor* tensor = file.find_tensor(name);
  if (tensor == nullptr) return invalid_argument("the model file has no tensor " + quoted(name));
  const Result<std::span<const std::byte>> bytes = file.tensor_bytes(*tensor);
  if (!bytes.ok()) return bytes.status();
  const std::optional<WeightType> type = weight_type_from_ggml(tensor->type);
  if (!type.has_value()) {
    // tensor_bytes() knew the type, so its name is known.
    return unsupported("tensor " + quoted(name) + " has type " +
                       std::string(ggml_type_info(tensor->type)->name) +
                       ", which kvik cannot compute with; quantize the model to Q8_0 or Q4_K");
  }
  // The reader has checked that the product of all dimensions fits.
  const int64_t rows = tensor->shape[1] * tensor->shape[2] * tensor->shape[3];
  return Weight::make(*type, rows, tensor->shape[0], bytes.value());
}

void decode_row(const Weight& weight, int64_t i, float* out) noexcept {
  const TypeEntry& t = entry_of(weight.type());
  t.decode(weight.row(i), weight.cols() / t.block_elements, out);
}

Status check_finite(const Weight& weight, std::string_view name) {
  const TypeEntry& t = entry_of(weight.type());
  const int64_t blocks_per_row = weight.rows() == 0 ? 0 : weight.cols() / t.block_elements;
  const int64_t num_blocks = weight.rows() * blocks_per_row;
  const int64_t bad = t.first_bad_block(weight.data(), num_blocks);
  if (bad == num_blocks) return {};
  return {StatusCode::corrupt, "tensor " + quoted(name) + " holds NaN or infinity in row " +
                                   std::to_string(bad / blocks_per_row) +
                                   "; the model file is damaged or badly converted"};
}

}  // namespace kvik
