#include "kvik/format/kv_format.h"

#include <array>

#include "format/packed_traits.h"
#include "kvik/core/checked_math.h"
#include "kvik/format/key_frame.h"
#include "kvik/format/tile.h"

namespace kvik {
namespace {

constexpr std::array kCodes = {
    KvCode::f32,      KvCode::f16,      KvCode::bf16,      KvCode::q8,       KvCode::q6,
    KvCode::q4,       KvCode::tqk_q8_0, KvCode::tqk_uint8, KvCode::tqk_q5_0, KvCode::tqk_q4_0,
    KvCode::tqk_int2, KvCode::tqv_q2_0, KvCode::tqv_q3_0,  KvCode::tqv_q4_0, KvCode::tqv_q5_0,
    KvCode::tqv_q8_0, KvCode::tq8,      KvCode::tq4,       KvCode::tq3,      KvCode::tq2,
    KvCode::tcq4,     KvCode::tcq3,     KvCode::tcq2,
};
constexpr size_t kNumPlain = 3;

// Those of packed formats are checked with the layer's codes.
Status check_head_dim(const char* name, int head_dim) {
  if (head_dim >= 0 && head_dim <= kMaxHeadDim) return {};
  return invalid_argument(std::string(name) + " is " + std::to_string(head_dim) +
                          "; formats store 0 to " + std::to_string(kMaxHeadDim));
}

}  // namespace

std::span<const KvCode> all_kv_codes() { return kCodes; }
std::span<const KvCode> all_packed_codes() { return std::span(kCodes).subspan(kNumPlain); }

std::string_view kv_code_name(KvCode code) {
  switch (code) {
    case KvCode::f32:
      return "f32";
    case KvCode::f16:
      return "f16";
    case KvCode::bf16:
      return "bf16";
    default:
      return internal::traits_of(code).name;
  }
}

Result<KvCode> parse_kv_code(std::string_view name) {
  std::string known;
  for (const KvCode code : kCodes) {
    if (kv_code_name(code) == name) return code;
    known += (known.empty() ? "" : ", ") + std::string(kv_code_name(code));
  }
  return invalid_argument("unknown KV format '" + std::string(name) + "'; known are " + known);
}

Result<KvFormat> parse_kv_format(std::string_view name) {
  const size_t colon = name.find(':');
  const Result<KvCode> k = parse_kv_code(name.substr(0, colon));
  if (!k.ok()) return k.status();
  if (colon == std::string_view::npos) return KvFormat{k.value(), k.value()};
  const Result<KvCode> v = parse_kv_code(name.substr(colon + 1));
  if (!v.ok()) return v.status();
  return KvFormat{k.value(), v.value()};
}

KvCode kv_code_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return KvCode::f32;
    case DType::f16:
      return KvCode::f16;
    case DType::bf16:
      return KvCode::bf16;
  }
  return KvCode::f32;
}

Status check(const KvSpec& spec) {
  if (spec.num_kv_heads < 1) {
    return invalid_argument("num_kv_heads is " + std::to_string(spec.num_kv_heads) +
                            "; a cache needs at least one");
  }
  if (Status status = check_head_dim("head_dim_k", spec.head_dim_k); !status.ok()) return status;
  if (Status status = check_head_dim("head_dim_v", spec.head_dim_v); !status.ok()) return status;
  if (spec.layers.empty()) return invalid_argument("layers is empty; a cache needs at least one");
  // Bytes of one token in f32 over all layers: the largest product that any size below starts from.
  if (!checked_product({spec.num_kv_heads, kMaxHeadDim + kTileLanes, 8,
                        static_cast<int64_t>(spec.layers.size())})) {
    return invalid_argument("num_kv_heads " + std::to_string(spec.num_kv_heads) +
                            " times layers overflows the size of a token");
  }
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    const KvFormat format = spec.layers[layer];
    if (Status status = check_keys(format.k, spec.head_dim_k); !status.ok()) {
      return invalid_argument("keys of layer " + std::to_string(layer) + ": " + status.message());
    }
    if (Status status = check_values(format.v, spec.head_dim_v); !status.ok()) {
      return invalid_argument("values of layer " + std::to_string(layer) + ": " + status.message());
    }
  }
  if (spec.key_calibration != nullptr) {
    return check(*spec.key_calibration, spec.num_layers(), spec.num_kv_heads, spec.head_dim_k);
  }
  return {};
}

int64_t token_bytes_k(const KvSpec& spec, int layer) {
  const KvCode code = spec.layers[static_cast<size_t>(layer)].k;
  return spec.num_kv_heads * tile_bytes_k(code, spec.head_dim_k) / kTileTokens;
}

int64_t token_bytes_v(const KvSpec& spec, int layer) {
  const KvCode code = spec.layers[static_cast<size_t>(layer)].v;
  return spec.num_kv_heads * tile_bytes_v(code, spec.head_dim_v) / kTileTokens;
}

int64_t token_bytes(const KvSpec& spec) {
  int64_t bytes = 0;
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    bytes += token_bytes_k(spec, layer) + token_bytes_v(spec, layer);
  }
  return bytes;
}

}  // namespace kvik
