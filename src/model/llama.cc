// The architecture "llama" (Llama, SmolLM2, Mistral and others): the common decoder as it is. A
// window, where the file states one, holds for all layers, as in Mistral 7B, unless a pattern says
// which. Biases of attention are computed where the file has them.
#include "model/decoder.h"

namespace kvik::internal {

Decoder load_llama(ModelFileReader& reader, ModelInfo& info) {
  read_hyperparameters(reader, info);
  if (!reader.status().ok()) return {};
  const int window = reader.integer_or("attention.sliding_window", 0, kMaxContext, 0);
  const std::vector<bool> has_window = read_window_pattern(reader, info.num_layers, 0);
  if (!reader.status().ok()) return {};
  Decoder model = read_decoder(reader, info, {.optional_biases = true});
  if (window > 0 && reader.status().ok()) group_windows(has_window, window, 0, info, model);
  return model;
}

}  // namespace kvik::internal
