// The element types a GGUF file can name, with the size of their blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kvik/core/export.h"

namespace kvik {

// A row of a tensor is a run of blocks; each holds `block_elements` values in `block_bytes` bytes.
struct GgmlTypeInfo {
  uint32_t type;  // the number in the file
  std::string_view name;
  int64_t block_elements;
  int64_t block_bytes;
};

// What is known about a type number, or nullptr for a number this library has never heard of.
// Knowing a size does not mean that the values can be decoded: see weight_type_from_ggml.
KVIK_API const GgmlTypeInfo* ggml_type_info(uint32_t type);

// Bytes of a row of `elements` values; nullopt if they do not fill whole blocks or overflow.
KVIK_API std::optional<int64_t> ggml_row_bytes(const GgmlTypeInfo& info, int64_t elements);

}  // namespace kvik
