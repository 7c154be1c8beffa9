// The architecture "qwen3": each head of q and k is normed before rope.
#include "model/decoder.h"

namespace kvik::internal {

Decoder load_qwen3(ModelFileReader& reader, ModelInfo& info) {
  read_hyperparameters(reader, info);
  if (reader.status().ok()) read_unplaced_window(reader, info);
  if (!reader.status().ok()) return {};
  Decoder model = read_decoder(reader, info, {.qk_norm = true});
  model.rope_pairs = RopePairs::halves;
  return model;
}

}  // namespace kvik::internal
