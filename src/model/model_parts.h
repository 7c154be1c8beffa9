// What a Model owns.
#pragma once

#include "kvik/core/status.h"
#include "kvik/model/chat_template.h"
#include "kvik/model/gguf.h"
#include "kvik/model/model.h"
#include "kvik/model/tokenizer.h"
#include "model/decoder.h"

namespace kvik::internal {

struct ModelParts {
  GgufFile file;  // owns the memory that the weights view
  ModelInfo info;
  Tokenizer tokenizer;
  Result<ChatTemplate> chat_template;
  Decoder decoder;
};

}  // namespace kvik::internal
