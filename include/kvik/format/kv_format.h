// Names and sizes of the storage formats of keys and values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvik/core/dtype.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"

namespace kvik {

// How one row (one head of one token) is stored. K and V are chosen apart. The plain codes come
// first; the others are packed, the number in a name being the bits of a code (packed_code.h):
//   q*    KV-Quant, K and V: signed codes, one f32 scale per row
//   tqk_* TurboQuant keys: unsigned codes (q8_0: signed), f16 scale and zero point per 32 elements
//   tqv_* TurboQuant values: rotated, Lloyd-Max codes, f16 scale per 32 elements
//   tq*   K and V: rotated, int8 levels, one unbiased f16 scale per row
//   tcq*  K and V: as tq*, levels chosen by a four-state trellis
enum class KvCode : uint8_t {
  f32,
  f16,
  bf16,
  q8,
  q6,
  q4,
  tqk_q8_0,
  tqk_uint8,
  tqk_q5_0,
  tqk_q4_0,
  tqk_int2,
  tqv_q2_0,
  tqv_q3_0,
  tqv_q4_0,
  tqv_q5_0,
  tqv_q8_0,
  tq8,
  tq4,
  tq3,
  tq2,
  tcq4,
  tcq3,
  tcq2,
};

constexpr bool is_packed(KvCode code) { return code >= KvCode::q8; }

struct KvFormat {
  KvCode k = KvCode::f16;
  KvCode v = KvCode::f16;
  friend bool operator==(const KvFormat&, const KvFormat&) = default;
};

// All codes, in the order of the enum; the packed ones alone.
KVIK_API std::span<const KvCode> all_kv_codes();
KVIK_API std::span<const KvCode> all_packed_codes();

// The enumerator's name, such as "f16" or "tqk_q8_0"; unique.
KVIK_API std::string_view kv_code_name(KvCode code);

// Parses "f16", or "K:V" such as "bf16:f32" for two codes. Errors: invalid_argument that lists the
// names. Names of other programs: kv_names.h.
KVIK_API Result<KvCode> parse_kv_code(std::string_view name);
KVIK_API Result<KvFormat> parse_kv_format(std::string_view name);

// The plain code that stores `dtype` unchanged.
KVIK_API KvCode kv_code_of(DType dtype);
// The dtype that a plain code stores. Requires: !is_packed(code).
constexpr DType dtype_of(KvCode code) {
  return code == KvCode::f32 ? DType::f32 : code == KvCode::f16 ? DType::f16 : DType::bf16;
}

// What the code may hold. TurboQuant codes hold one of the two, all others both.
KVIK_API bool stores_keys(KvCode code);
KVIK_API bool stores_values(KvCode code);

// Whether rows are stored after signs and Hadamard, so that queries (K) or outputs (V) must be
// rotated too.
KVIK_API bool is_rotated(KvCode code);

// Largest head dimension of the plain formats (K and V apart).
inline constexpr int kMaxHeadDim = 576;

// Ok where `code` stores rows of `head_dim` floats, else invalid_argument that says which head dims
// it takes and which codes would store this one:
//   plain 0 to kMaxHeadDim; q8 any, q6 multiples of 4, q4 even, up to kMaxHeadDim; tqk_*, tqv_*
//   multiples of 32 up to kMaxHeadDim; tq*, tcq* multiples of 16 from 32 to 512.
KVIK_API Status check(KvCode code, int head_dim);
// The same, and that the code stores keys (values).
KVIK_API Status check_keys(KvCode code, int head_dim);
KVIK_API Status check_values(KvCode code, int head_dim);

struct KeyCalibration;

// Shape and formats of one cache: every layer has the same heads, each layer its own format.
struct KvSpec {
  int num_kv_heads = 0;
  int head_dim_k = 0;  // 0 to kMaxHeadDim, and what the layers' codes take
  int head_dim_v = 0;
  std::vector<KvFormat> layers;
  // Keys of rotated formats are stored in frames with these centres and diagonals (key_frame.h);
  // null: without frames.
  std::shared_ptr<const KeyCalibration> key_calibration = nullptr;

  int num_layers() const { return static_cast<int>(layers.size()); }
};

// invalid_argument naming the field that is out of range, or the layer whose format does not store
// its keys or values, else ok.
KVIK_API Status check(const KvSpec& spec);

// Bytes that one token's rows of all heads take in one layer, padding of the head dims included.
KVIK_API int64_t token_bytes_k(const KvSpec& spec, int layer);
KVIK_API int64_t token_bytes_v(const KvSpec& spec, int layer);
// The same over K, V and all layers.
KVIK_API int64_t token_bytes(const KvSpec& spec);

}  // namespace kvik
