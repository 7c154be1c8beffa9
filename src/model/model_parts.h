// What a Model owns, and the list of architectures.
#pragma once

#include <optional>
#include <variant>

#include "kvik/core/status.h"
#include "kvik/model/chat_template.h"
#include "kvik/model/gguf.h"
#include "kvik/model/model.h"
#include "kvik/model/tokenizer.h"
#include "model/llama.h"

namespace kvik::internal {

// One alternative per architecture. Each has run_layers(), norm_epsilon, output_norm and output.
using Architecture = std::variant<LlamaModel>;

struct ModelParts {
  GgufFile file;  // owns the memory that the weights view
  ModelInfo info;
  Tokenizer tokenizer;
  Result<ChatTemplate> chat_template;
  Architecture architecture;
};

}  // namespace kvik::internal
