#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include "model/gguf_parser.h"

namespace kvik::internal {
namespace {

// Older files state the factor under another name.
double linear_factor(ModelFileReader& reader) {
  const double old_name = reader.positive_or("rope.scale_linear", 1);
  const double factor = reader.positive_or("rope.scaling.factor", old_name);
  if (reader.has_key("rope.scale_linear") && factor != old_name) {
    reader.fail({StatusCode::corrupt, "rope.scaling.factor is " + std::to_string(factor) +
                                          " and rope.scale_linear " + std::to_string(old_name) +
                                          "; they are two names of one factor"});
  }
  return factor;
}

void slow_down(ModelFileReader& reader, double base, int rope_dim, Rope& rope) {
  const std::string_view type = reader.string_or("rope.scaling.type", "");
  // Only YaRN asks for it.
  if (type != "yarn") reader.mark_read("rope.scaling.original_context_length");
  if (type == "none") {
    reader.mark_read("rope.scaling.factor");
    reader.mark_read("rope.scale_linear");
    return;
  }
  if (type.empty() || type == "linear") {
    const double factor = linear_factor(reader);
    for (double& frequency : rope.frequency) frequency /= factor;
    return;
  }
  if (type != "yarn") {
    reader.fail(unsupported("the model's rope scaling is " + quoted(type) +
                            "; kvik computes none, linear, yarn and factors per frequency"));
    return;
  }
  Yarn yarn;
  if (!reader.has_key("rope.scaling.factor")) {
    reader.fail({StatusCode::corrupt,
                 "the model's rope scaling is \"yarn\" without a "
                 "rope.scaling.factor"});
  }
  yarn.factor = linear_factor(reader);
  yarn.original_context = reader.integer("rope.scaling.original_context_length", 1, kMaxContext);
  yarn.attention_factor = reader.positive_or("rope.scaling.attn_factor", 1);
  yarn.beta_fast = reader.positive_or("rope.scaling.yarn_beta_fast", yarn.beta_fast);
  yarn.beta_slow = reader.positive_or("rope.scaling.yarn_beta_slow", yarn.beta_slow);
  if (const double mix = reader.number_or("rope.scaling.yarn_ext_factor", 1);
      mix >= 0 && mix != 1) {
    reader.fail(unsupported("rope.scaling.yarn_ext_factor is " + std::to_string(mix) +
                            "; kvik computes YaRN with 1"));
  }
  if (reader.status().ok()) apply_yarn(yarn, base, rope_dim, rope);
}

}  // namespace

void apply_yarn(const Yarn& yarn, double base, int rope_dim, Rope& rope) {
  // The pair that makes `turns` turns within the original context.
  const auto pair_of = [&](double turns) {
    return rope_dim * std::log(yarn.original_context / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  const double low = std::max(0.0, std::floor(pair_of(yarn.beta_fast)));
  const double high = std::min(rope_dim - 1.0, std::ceil(pair_of(yarn.beta_slow)));
  for (size_t i = 0; i < rope.frequency.size(); ++i) {
    const double ramp = (static_cast<double>(i) - low) / std::max(0.001, high - low);
    const double slow = std::clamp(ramp, 0.0, 1.0);
    rope.frequency[i] *= slow / yarn.factor + (1 - slow);
  }
  rope.magnitude = yarn.attention_factor * (1 + 0.1 * std::log(yarn.factor));
}

Rope plain_rope(double base, int rope_dim) {
  Rope rope;
  rope.frequency.resize(static_cast<size_t>(rope_dim / 2));
  for (size_t i = 0; i < rope.frequency.size(); ++i) {
    rope.frequency[i] = std::pow(base, -2.0 * static_cast<double>(i) / rope_dim);
  }
  return rope;
}

Rope read_rope(ModelFileReader& reader, int rope_dim) {
  const double base = reader.positive_or("rope.freq_base", 10000);
  Rope rope = plain_rope(base, rope_dim);
  slow_down(reader, base, rope_dim, rope);
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

void rope_angles(const Rope& rope, std::span<const int32_t> positions, int64_t first_position,
                 float* cos, float* sin) {
  for (const int32_t position : positions) {
    for (const double frequency : rope.frequency) {
      const double angle = static_cast<double>(first_position + position) * frequency;
      *cos++ = static_cast<float>(rope.magnitude * std::cos(angle));
      *sin++ = static_cast<float>(rope.magnitude * std::sin(angle));
    }
  }
}

void rotate_heads(float* row, int num_heads, int head_dim, RopePairs pairs, const float* cos,
                  const float* sin, int num_pairs) noexcept {
  const bool halves = pairs == RopePairs::halves;
  const int step = halves ? 1 : 2;
  const int apart = halves ? num_pairs : 1;
  for (int head = 0; head < num_heads; ++head, row += head_dim) {
    for (int i = 0; i < num_pairs; ++i) {
      float& first = row[step * i];
      float& second = row[step * i + apart];
      const float a = first;
      const float b = second;
      first = a * cos[i] - b * sin[i];
      second = a * sin[i] + b * cos[i];
    }
  }
}

}  // namespace kvik::internal
