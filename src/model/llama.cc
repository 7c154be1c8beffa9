// The architecture "llama" (Llama, SmolLM2, Mistral and others): the common decoder as it is.
#include "model/decoder.h"

namespace kvik::internal {

Decoder load_llama(ModelFileReader& reader, ModelInfo& info) {
  read_hyperparameters(reader, info);
  if (!reader.status().ok()) return {};
  return read_decoder(reader, info, {});
}

}  // namespace kvik::internal
