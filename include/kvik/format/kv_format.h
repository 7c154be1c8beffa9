// Names and sizes of the storage formats of keys and values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvik/core/dtype.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// How one row (one head of one token) is stored. K and V are chosen apart.
enum class KvCode : uint8_t { f32, f16, bf16 };

struct KvFormat {
  KvCode k = KvCode::f16;
  KvCode v = KvCode::f16;
  friend bool operator==(const KvFormat&, const KvFormat&) = default;
};

// All codes, in the order of the enum.
KVIK_API std::span<const KvCode> all_kv_codes();

// "f32", "f16", "bf16".
KVIK_API std::string_view kv_code_name(KvCode code);

// Parses "f16", or "K:V" such as "bf16:f32" for two codes. Errors: invalid_argument that lists the
// names.
KVIK_API Result<KvCode> parse_kv_code(std::string_view name);
KVIK_API Result<KvFormat> parse_kv_format(std::string_view name);

// The plain code that stores `dtype` unchanged.
KVIK_API KvCode kv_code_of(DType dtype);

// Largest head dimension of the plain formats (K and V apart).
inline constexpr int kMaxHeadDim = 576;

// Shape and formats of one cache: every layer has the same heads, each layer its own format.
struct KvSpec {
  int num_kv_heads = 0;
  int head_dim_k = 0;  // 0 to kMaxHeadDim
  int head_dim_v = 0;  // 0 to kMaxHeadDim
  std::vector<KvFormat> layers;

  int num_layers() const { return static_cast<int>(layers.size()); }
};

// invalid_argument naming the field that is out of range, else ok.
KVIK_API Status check(const KvSpec& spec);

// Bytes that one token's rows of all heads take in one layer, padding of the head dims included.
KVIK_API int64_t token_bytes_k(const KvSpec& spec, int layer);
KVIK_API int64_t token_bytes_v(const KvSpec& spec, int layer);
// The same over K, V and all layers.
KVIK_API int64_t token_bytes(const KvSpec& spec);

}  // namespace kvik
