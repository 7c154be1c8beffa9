// The architecture "gemma3", text only: most layers see a window, every sixth sees everything
// unless the file has another pattern, and the two kinds turn by different ropes; normed heads,
// norms behind both parts, GELU, scaled embeddings. The norm weights in GGUF files hold the 1 that
// the published formula adds.
#include <cmath>
#include <vector>

#include "model/decoder.h"

namespace kvik::internal {
namespace {

// The architecture's own values, which files do not state.
constexpr int kPattern = 6;
constexpr double kLocalRopeBase = 10000;
constexpr int kLayersOf27B = 62;

}  // namespace

Decoder load_gemma3(ModelFileReader& reader, ModelInfo& info) {
  read_hyperparameters(reader, info);
  const int window = reader.integer("attention.sliding_window", 0, kMaxContext);
  const std::vector<bool> has_window = read_window_pattern(reader, info.num_layers, kPattern);
  const double local_base = reader.positive_or("rope.freq_base_swa", kLocalRopeBase);
  if (!reader.status().ok()) return {};
  Decoder model = read_decoder(reader, info, {.qk_norm = true, .post_norms = true});
  if (!reader.status().ok()) return model;
  model.rope_pairs = RopePairs::halves;
  model.activation = Activation::gelu_tanh;
  model.embedding_scale = std::sqrt(static_cast<float>(info.embedding_dim));
  // The largest model divides by the width of a head in the residual stream instead.
  if (info.num_layers == kLayersOf27B && !reader.has_key("attention.scale")) {
    model.attention_scale = static_cast<float>(
        1.0 / std::sqrt(static_cast<double>(info.embedding_dim) / info.num_heads));
  }
  model.ropes.push_back(plain_rope(local_base, info.rope_dim));
  if (window > 0) group_windows(has_window, window, 1, info, model);
  return model;
}

}  // namespace kvik::internal
