// A gemma3 model of random weights: five layers of six see a window.
#pragma once

#include <string>

#include "support/tiny_model.h"

namespace kvik::test {

// `shape` counts the layers: below six all of them see the window. Call load() on it.
inline TinyModel tiny_gemma(TinyShape shape, int window, uint64_t seed = 1) {
  TinyModel tiny(shape, seed);
  tiny.architecture = "gemma3";
  uint64_t norm_seed = seed * 7777;
  const auto add_norm = [&](const std::string& name, int size) {
    testing::TensorSpec spec;
    spec.name = name;
    spec.shape = {static_cast<uint64_t>(size)};
    std::vector<float> values = bell(++norm_seed, size);
    for (float& value : values) value = 1 + 0.1F * value;
    spec.data.resize(values.size() * sizeof(float));
    std::memcpy(spec.data.data(), values.data(), spec.data.size());
    tiny.tensors()[name] = std::move(spec);
  };
  for (int i = 0; i < shape.num_layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    add_norm(prefix + "attn_q_norm.weight", shape.head_dim);
    add_norm(prefix + "attn_k_norm.weight", shape.head_dim);
    add_norm(prefix + "post_attention_norm.weight", shape.embedding_dim);
    add_norm(prefix + "post_ffw_norm.weight", shape.embedding_dim);
  }
  tiny.more_metadata = [window](testing::GgufWriter& writer) {
    writer.add_u32("gemma3.attention.sliding_window", static_cast<uint32_t>(window));
  };
  return tiny;
}

}  // namespace kvik::test
