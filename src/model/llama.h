// The architecture "llama": RMS norm, rotary attention with grouped heads, SwiGLU.
#pragma once

#include <vector>

#include "kvik/core/status.h"
#include "kvik/model/model.h"
#include "kvik/model/weights.h"
#include "model/forward_pass.h"
#include "model/model_file.h"
#include "model/rope.h"

namespace kvik::internal {

struct LlamaLayer {
  std::vector<float> attn_norm, ffn_norm;
  Weight q, k, v, attn_output;
  Weight gate, up, down;
};

struct LlamaModel {
  float norm_epsilon = 0;
  Rope rope;
  Weight embedding;  // [vocab_size][embedding_dim]
  std::vector<LlamaLayer> layers;
  std::vector<float> output_norm;
  Weight output;  // the embedding where the file has no matrix of its own

  // Reads hyperparameters into `info` and weights. Errors go to the reader.
  static LlamaModel load(ModelFileReader& reader, ModelInfo& info);

  // All layers over the new tokens of pass.plan, whose embeddings it looks up; leaves the hidden
  // rows before the final norm in pass.workspace.hidden.
  Status run_layers(const ForwardPass& pass) const;
};

}  // namespace kvik::internal
