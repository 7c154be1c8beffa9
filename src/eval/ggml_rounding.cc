#include "kvik/eval/ggml_rounding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "format/hadamard.h"
#include "kvik/core/dtype.h"

namespace kvik {
namespace {

constexpr int kRotatedValueElements = 64;

struct Named {
  std::string_view name;
  GgmlFormat format;
};
constexpr std::array<Named, 6> kNames = {{{"ggml-q8_0", {GgmlBlock::q8_0, false}},
                                          {"ggml-q8_0-rot", {GgmlBlock::q8_0, true}},
                                          {"ggml-q5_1", {GgmlBlock::q5_1, false}},
                                          {"ggml-q5_1-rot", {GgmlBlock::q5_1, true}},
                                          {"ggml-q4_0", {GgmlBlock::q4_0, false}},
                                          {"ggml-q4_0-rot", {GgmlBlock::q4_0, true}}}};

float as_f16(float x) { return f16_to_f32(f32_to_f16(x)); }

void round_q8_0(float* x) {
  float most = 0;
  for (int i = 0; i < kGgmlBlockElements; ++i) most = std::max(most, std::abs(x[i]));
  const float scale = most / 127;
  const float inverse = scale != 0 ? 1 / scale : 0;
  const float stored = as_f16(scale);
  for (int i = 0; i < kGgmlBlockElements; ++i) x[i] = std::round(x[i] * inverse) * stored;
}

void round_q5_1(float* x) {
  const auto [least, most] = std::minmax_element(x, x + kGgmlBlockElements);
  const float low = *least;
  const float scale = (*most - low) / 31;
  const float inverse = scale != 0 ? 1 / scale : 0;
  const float stored = as_f16(scale);
  const float stored_low = as_f16(low);
  for (int i = 0; i < kGgmlBlockElements; ++i) {
    x[i] = std::floor((x[i] - low) * inverse + 0.5F) * stored + stored_low;
  }
}

void round_q4_0(float* x) {
  const float extreme = *std::max_element(
      x, x + kGgmlBlockElements, [](float a, float b) { return std::abs(a) < std::abs(b); });
  const float scale = extreme / -8;
  const float inverse = scale != 0 ? 1 / scale : 0;
  const float stored = as_f16(scale);
  for (int i = 0; i < kGgmlBlockElements; ++i) {
    x[i] = (std::min(15.0F, std::floor(x[i] * inverse + 8.5F)) - 8) * stored;
  }
}

void round_blocks(GgmlBlock block, int head_dim, float* row) {
  for (int i = 0; i < head_dim; i += kGgmlBlockElements) {
    switch (block) {
      case GgmlBlock::q8_0:
        round_q8_0(row + i);
        break;
      case GgmlBlock::q5_1:
        round_q5_1(row + i);
        break;
      case GgmlBlock::q4_0:
        round_q4_0(row + i);
        break;
    }
  }
}

// Calls round(row) for each row of a view [num_tokens, num_heads, head_dim] of floats.
template <class Round>
void for_each_row(const TensorView& rows, const Round& round) {
  for (int64_t token = 0; token < rows.dim(0); ++token) {
    for (int64_t head = 0; head < rows.dim(1); ++head) {
      round(reinterpret_cast<float*>(rows.at(token, head)));
    }
  }
}

}  // namespace

std::optional<GgmlFormat> parse_ggml_format(std::string_view name) {
  for (const Named& each : kNames) {
    if (each.name == name) return each.format;
  }
  return std::nullopt;
}

std::string_view ggml_format_name(const GgmlFormat& format) {
  const auto* const found = std::find_if(kNames.begin(), kNames.end(),
                                         [&](const Named& each) { return each.format == format; });
  return found->name;
}

int64_t ggml_row_bytes(GgmlBlock block, int head_dim) {
  const int64_t block_bytes = block == GgmlBlock::q8_0   ? 2 + 32
                              : block == GgmlBlock::q5_1 ? 2 + 2 + 20
                                                         : 2 + 16;
  return head_dim / kGgmlBlockElements * block_bytes;
}

Status check_ggml(const GgmlFormat& format, int head_dim) {
  const int unit = format.rotated ? kRotatedValueElements : kGgmlBlockElements;
  if (head_dim > 0 && head_dim % unit == 0) return {};
  return invalid_argument(std::string(ggml_format_name(format)) +
                          " takes head dims in multiples of " + std::to_string(unit) + ", not " +
                          std::to_string(head_dim));
}

void round_ggml_key(const GgmlFormat& format, int head_dim, float* row) noexcept {
  if (format.rotated) internal::hadamard(row, head_dim);
  round_blocks(format.block, head_dim, row);
  if (format.rotated) internal::hadamard(row, head_dim);
}

void round_ggml_value(const GgmlFormat& format, int head_dim, float* row) noexcept {
  const auto rotate = [&] {
    if (!format.rotated) return;
    for (int i = 0; i < head_dim; i += kRotatedValueElements) {
      internal::hadamard(row + i, kRotatedValueElements);
    }
  };
  rotate();
  round_blocks(format.block, head_dim, row);
  rotate();
}

RowHook ggml_hook(std::optional<GgmlFormat> keys, std::optional<GgmlFormat> values) {
  if (!keys && !values) return {};
  return [keys, values](const LayerRows& rows) {
    if (keys) {
      const auto dim = static_cast<int>(rows.k.dim(2));
      for_each_row(rows.k, [&](float* row) { round_ggml_key(*keys, dim, row); });
    }
    if (values) {
      const auto dim = static_cast<int>(rows.v.dim(2));
      for_each_row(rows.v, [&](float* row) { round_ggml_value(*values, dim, row); });
    }
  };
}

}  // namespace kvik
