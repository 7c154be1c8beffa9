// The architecture "gemma3", text only: most layers see a window, every sixth sees everything, and
// the two kinds turn by different ropes; normed heads, norms behind both parts, GELU, scaled
// embeddings. The norm weights in GGUF files hold the 1 that the published formula adds.
#include <cmath>
#include <utility>

#include "model/decoder.h"

namespace kvik::internal {
namespace {

// The architecture's own values, which files do not state.
constexpr int kPattern = 6;
constexpr double kLocalRopeBase = 10000;
constexpr int kLayersOf27B = 62;

// Layers kPattern - 1, 2 * kPattern - 1, ... are global.
void group_layers(int window, ModelInfo& info, Decoder& model) {
  LayerGroup global;
  LayerGroup local{{}, window};
  for (int i = 0; i < info.num_layers; ++i) {
    const bool is_global = (i + 1) % kPattern == 0;
    LayerGroup& group = is_global ? global : local;
    DecoderLayer& layer = model.layers[static_cast<size_t>(i)];
    layer.cache_idx = is_global ? 0 : 1;
    layer.cache_layer = static_cast<int>(group.layers.size());
    layer.rope_idx = is_global ? 0 : 1;
    group.layers.push_back(i);
  }
  if (global.layers.empty()) {
    for (DecoderLayer& layer : model.layers) layer.cache_idx = 0;
    info.groups = {std::move(local)};
    return;
  }
  info.groups = {std::move(global), std::move(local)};
}

}  // namespace

Decoder load_gemma3(ModelFileReader& reader, ModelInfo& info) {
  read_hyperparameters(reader, info);
  const int window = reader.integer("attention.sliding_window", 1, kMaxContext);
  const int pattern =
      reader.integer_or("attention.sliding_window_pattern", 1, kMaxLayers, kPattern);
  if (pattern != kPattern) {
    reader.fail(unsupported("the model has a global layer after every " + std::to_string(pattern) +
                            " layers; kvik computes gemma3 with one in 6"));
  }
  if (reader.has_key("final_logit_softcapping")) {
    reader.fail(unsupported("the model caps its logits; kvik computes gemma3 without"));
  }
  const double local_base = reader.positive_or("rope.freq_base_swa", kLocalRopeBase);
  if (!reader.status().ok()) return {};
  Decoder model = read_decoder(reader, info, {.qk_norm = true, .post_norms = true});
  if (!reader.status().ok()) return model;
  model.rope_pairs = RopePairs::halves;
  model.activation = Activation::gelu_tanh;
  model.embedding_scale = std::sqrt(static_cast<float>(info.embedding_dim));
  // The largest model divides by the width of a head in the residual stream instead.
  if (info.num_layers == kLayersOf27B) {
    model.attention_scale = static_cast<float>(
        1.0 / std::sqrt(static_cast<double>(info.embedding_dim) / info.num_heads));
  }
  model.ropes.push_back(plain_rope(local_base, info.rope_dim));
  group_layers(window, info, model);
  return model;
}

}  // namespace kvik::internal
