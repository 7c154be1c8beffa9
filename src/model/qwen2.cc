// The architecture "qwen2" (Qwen 2 and 2.5): q, k and v have biases.
#include "model/decoder.h"

namespace kvik::internal {

Decoder load_qwen2(ModelFileReader& reader, ModelInfo& info) {
  read_hyperparameters(reader, info);
  if (reader.status().ok()) read_unplaced_window(reader, info);
  if (!reader.status().ok()) return {};
  Decoder model = read_decoder(reader, info, {.qkv_bias = true});
  model.rope_pairs = RopePairs::halves;
  return model;
}

}  // namespace kvik::internal
