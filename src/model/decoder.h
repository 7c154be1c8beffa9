// The forward pass that the dense architectures share: RMS norms, rotary attention with grouped
// heads, a gated feed-forward part. What an architecture does differently is data in here; its own
// file reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvik/core/status.h"
#include "kvik/model/model.h"
#include "kvik/model/weights.h"
#include "model/forward_pass.h"
#include "model/model_file.h"
#include "model/rope.h"

namespace kvik::internal {

enum class Activation : uint8_t { silu, gelu_tanh };

// An empty vector: the architecture has no such part.
struct DecoderLayer {
  std::vector<float> attn_norm, ffn_norm;
  Weight q, k, v, attn_output;
  Weight gate, up, down;
  std::vector<float> q_bias, k_bias, v_bias, output_bias;
  std::vector<float> q_norm, k_norm;  // one weight per dim of a head, shared by its heads
  std::vector<float> attn_post_norm, ffn_post_norm;  // of what a part adds to the residual stream
  int cache_idx = 0;    // which cache of the set, an index of ModelInfo::groups
  int cache_layer = 0;  // which layer of that cache
  int rope_idx = 0;     // an index of Decoder::ropes
};

struct Decoder {
  float norm_epsilon = 0;
  float embedding_scale = 1;
  float attention_scale = 1;
  float attention_softcap = 0;  // of scores; 0: none
  float logit_softcap = 0;      // 0: none
  Activation activation = Activation::silu;
  RopePairs rope_pairs = RopePairs::neighbours;
  std::vector<Rope> ropes;  // 1 to kMaxRopes
  Weight embedding;         // [vocab_size][embedding_dim]
  std::vector<DecoderLayer> layers;
  std::vector<float> output_norm;
  Weight output;  // the embedding where the file has no matrix of its own

  // All layers over the new tokens of the pass, whose embeddings it looks up; leaves the hidden
  // rows before the final norm in pass.workspace.hidden.
  Status run_layers(const ForwardPass& pass) const;
};

// What an architecture's layers have beyond the common tensors.
struct DecoderParts {
  bool qkv_bias = false;
  bool optional_biases = false;  // of q, k, v and the output, each where the file has it
  bool qk_norm = false;
  bool post_norms = false;
};

// Reading, in this order; errors go to the reader. Hyperparameters that every architecture has,
// into `info`: all layers in one group without a window.
void read_hyperparameters(ModelFileReader& reader, ModelInfo& info);
// Norm epsilon, scales, caps, one rope, all weights. Requires: hyperparameters were read without
// error.
Decoder read_decoder(ModelFileReader& reader, ModelInfo& info, const DecoderParts& parts);

// Which layers see a window: `attention.sliding_window_pattern`, one flag per layer or a number n
// (the last of every n layers sees everything; 0: none does), else n is `otherwise`. Errors go to
// the reader.
std::vector<bool> read_window_pattern(ModelFileReader& reader, int num_layers, int otherwise);
// `attention.sliding_window` of an architecture whose files do not say which layers have it: one
// below the trained context is refused, another bounds ModelInfo::max_context. Errors go to the
// reader. Requires: hyperparameters were read without error.
void read_unplaced_window(ModelFileReader& reader, ModelInfo& info);
// Errors: unsupported for a context of `num_tokens` beyond ModelInfo::max_context.
Status check_reach(const ModelInfo& info, int64_t num_tokens);
// Puts the layers with a window in a group of their own, behind the others; they turn by the rope
// `window_rope_idx`. Requires: read_decoder() passed; one flag per layer.
void group_windows(const std::vector<bool>& has_window, int window, int window_rope_idx,
                   ModelInfo& info, Decoder& model);

// One per architecture, each in a file of its name.
Decoder load_llama(ModelFileReader& reader, ModelInfo& info);
Decoder load_qwen2(ModelFileReader& reader, ModelInfo& info);
Decoder load_qwen3(ModelFileReader& reader, ModelInfo& info);
Decoder load_gemma3(ModelFileReader& reader, ModelInfo& info);

}  // namespace kvik::internal
