#include "model/rope.h"

#include <cmath>
#include <string>
#include <string_view>

#include "model/gguf_parser.h"

namespace kvik::internal {
namespace {

double read_linear_factor(ModelFileReader& reader) {
  const std::string_view type = reader.string_or("rope.scaling.type", "");
  if (type == "none") return 1;
  if (type.empty() || type == "linear") {
    // Older files state the factor alone.
    if (!reader.has_key("rope.scaling.factor")) return reader.positive_or("rope.scale_linear", 1);
    return reader.positive("rope.scaling.factor");
  }
  reader.fail(unsupported("the model's rope scaling is " + quoted(type) +
                          "; kvik computes none, linear and per-frequency factors"));
  return 1;
}

}  // namespace

Rope read_rope(ModelFileReader& reader, int rope_dim) {
  const double base = reader.positive_or("rope.freq_base", 10000);
  const double factor = read_linear_factor(reader);
  Rope rope;
  rope.frequency.resize(static_cast<size_t>(rope_dim / 2));
  for (size_t i = 0; i < rope.frequency.size(); ++i) {
    rope.frequency[i] = std::pow(base, -2.0 * static_cast<double>(i) / rope_dim) / factor;
  }
  constexpr const char* kFactors = "rope_freqs.weight";
  if (!reader.has_tensor(kFactors)) return rope;
  const std::vector<float> divisors = reader.vector(kFactors, rope_dim / 2);
  for (size_t i = 0; i < divisors.size(); ++i) {
    if (!(divisors[i] > 0) || !std::isfinite(divisors[i])) {
      reader.fail({StatusCode::corrupt, "tensor \"rope_freqs.weight\" holds " +
                                            std::to_string(divisors[i]) +
                                            "; its factors must be "
                                            "above zero"});
      return rope;
    }
    rope.frequency[i] /= static_cast<double>(divisors[i]);
  }
  return rope;
}

void rope_angles(const Rope& rope, std::span<const int32_t> positions, float* cos, float* sin) {
  for (const int32_t position : positions) {
    for (const double frequency : rope.frequency) {
      const double angle = position * frequency;
      *cos++ = static_cast<float>(std::cos(angle));
      *sin++ = static_cast<float>(std::sin(angle));
    }
  }
}

void rotate_heads(float* row, int num_heads, int head_dim, const float* cos, const float* sin,
                  int num_pairs) noexcept {
  for (int head = 0; head < num_heads; ++head, row += head_dim) {
    for (int i = 0; i < num_pairs; ++i) {
      const float a = row[2 * i];
      const float b = row[2 * i + 1];
      row[2 * i] = a * cos[i] - b * sin[i];
      row[2 * i + 1] = a * sin[i] + b * cos[i];
    }
  }
}

}  // namespace kvik::internal
