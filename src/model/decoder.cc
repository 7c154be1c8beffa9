#include "model/decoder.h"

#include <cmath>
#include <string>
#include <utility>

#include "model/gguf_parser.h"
#include "model/layers.h"

namespace kvik::internal {
namespace {

void read_head_dims(ModelFileReader& reader, ModelInfo& info) {
  info.num_heads =
      reader.integer_of_layers("attention.head_count", 1, info.embedding_dim, info.num_layers);
  info.num_kv_heads =
      reader.has_key("attention.head_count_kv")
          ? reader.integer_of_layers("attention.head_count_kv", 1, info.num_heads, info.num_layers)
          : info.num_heads;
  if (!reader.status().ok()) return;
  if (info.num_heads % info.num_kv_heads != 0) {
    reader.fail({StatusCode::corrupt, std::to_string(info.num_heads) +
                                          " query heads cannot share " +
                                          std::to_string(info.num_kv_heads) + " KV heads evenly"});
    return;
  }
  const bool has_dims =
      reader.has_key("attention.key_length") && reader.has_key("attention.value_length");
  if (!has_dims && info.embedding_dim % info.num_heads != 0) {
    reader.fail({StatusCode::corrupt, "an embedding of " + std::to_string(info.embedding_dim) +
                                          " dims does not divide into " +
                                          std::to_string(info.num_heads) + " heads"});
    return;
  }
  const int even = info.embedding_dim / info.num_heads;
  info.head_dim_k = reader.integer_or("attention.key_length", 2, kMaxHeadDim, even);
  info.head_dim_v = reader.integer_or("attention.value_length", 1, kMaxHeadDim, even);
  if (info.head_dim_k > kMaxHeadDim || info.head_dim_v > kMaxHeadDim) {
    reader.fail(unsupported("heads of " + std::to_string(even) + " dims; the most is " +
                            std::to_string(kMaxHeadDim)));
  }
  info.rope_dim = reader.integer_or("rope.dimension_count", 2, info.head_dim_k, info.head_dim_k);
  if (info.rope_dim % 2 != 0) {
    reader.fail({StatusCode::corrupt,
                 "rope turns pairs; it cannot turn " + std::to_string(info.rope_dim) + " dims"});
  }
}

DecoderLayer read_layer(ModelFileReader& reader, const ModelInfo& info, const DecoderParts& parts,
                        int index) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const int64_t width = info.embedding_dim;
  const int64_t q_width = int64_t{info.num_heads} * info.head_dim_k;
  const int64_t k_width = int64_t{info.num_kv_heads} * info.head_dim_k;
  const int64_t v_width = int64_t{info.num_kv_heads} * info.head_dim_v;
  DecoderLayer layer;
  layer.attn_norm = reader.vector(prefix + "attn_norm.weight", width);
  layer.q = reader.matrix(prefix + "attn_q.weight", q_width, width);
  layer.k = reader.matrix(prefix + "attn_k.weight", k_width, width);
  layer.v = reader.matrix(prefix + "attn_v.weight", v_width, width);
  layer.attn_output = reader.matrix(prefix + "attn_output.weight", width,
                                    int64_t{info.num_heads} * info.head_dim_v);
  layer.ffn_norm = reader.vector(prefix + "ffn_norm.weight", width);
  layer.gate = reader.matrix(prefix + "ffn_gate.weight", info.ffn_dim, width);
  layer.up = reader.matrix(prefix + "ffn_up.weight", info.ffn_dim, width);
  layer.down = reader.matrix(prefix + "ffn_down.weight", width, info.ffn_dim);
  if (parts.qkv_bias) {
    layer.q_bias = reader.vector(prefix + "attn_q.bias", q_width);
    layer.k_bias = reader.vector(prefix + "attn_k.bias", k_width);
    layer.v_bias = reader.vector(prefix + "attn_v.bias", v_width);
  }
  if (parts.optional_biases) {
    const auto optional = [&](const std::string& name, int64_t size) {
      return reader.has_tensor(prefix + name) ? reader.vector(prefix + name, size)
                                              : std::vector<float>();
    };
    layer.q_bias = optional("attn_q.bias", q_width);
    layer.k_bias = optional("attn_k.bias", k_width);
    layer.v_bias = optional("attn_v.bias", v_width);
    layer.output_bias = optional("attn_output.bias", width);
  }
  if (parts.qk_norm) {
    layer.q_norm = reader.vector(prefix + "attn_q_norm.weight", info.head_dim_k);
    layer.k_norm = reader.vector(prefix + "attn_k_norm.weight", info.head_dim_k);
  }
  if (parts.post_norms) {
    layer.attn_post_norm = reader.vector(prefix + "post_attention_norm.weight", width);
    layer.ffn_post_norm = reader.vector(prefix + "post_ffw_norm.weight", width);
  }
  layer.cache_layer = index;
  return layer;
}

// The rows of the step times a weight.
void multiply(const ForwardPass& pass, const Weight& weight, const float* x, float* y) {
  pass.matmul.multiply(weight, x, weight.cols(), pass.num_tokens(), y, weight.rows());
}

// The heads of all rows, normed one by one where the layer does that, then turned.
void norm_and_rotate(const Decoder& model, const DecoderLayer& layer, const ForwardPass& pass,
                     const std::vector<float>& norm, int num_heads, float* x) {
  const int64_t n = pass.num_tokens();
  if (!norm.empty()) rms_norm(pass.team, x, n * num_heads, norm, model.norm_epsilon, x);
  const RopeAngles& angles = pass.workspace.angles[static_cast<size_t>(layer.rope_idx)];
  rotate_rows(
      pass.team, x, n, num_heads, pass.info.head_dim_k, model.rope_pairs,
      {angles.cos, angles.sin, model.ropes[static_cast<size_t>(layer.rope_idx)].num_pairs()});
}

// Adds what a part of the layer computed to the residual stream.
void add_delta(const Decoder& model, const std::vector<float>& post_norm, const ForwardPass& pass) {
  Workspace& w = pass.workspace;
  const int64_t n = pass.num_tokens();
  if (!post_norm.empty()) {
    rms_norm(pass.team, w.delta, n, post_norm, model.norm_epsilon, w.delta);
  }
  add_to(pass.team, w.hidden, w.delta, n, pass.info.embedding_dim);
}

void project_qkv(const Decoder& model, const DecoderLayer& layer, const ForwardPass& pass) {
  const ModelInfo& info = pass.info;
  Workspace& w = pass.workspace;
  const int64_t n = pass.num_tokens();
  rms_norm(pass.team, w.hidden, n, layer.attn_norm, model.norm_epsilon, w.normed);
  const WeightProduct products[] = {{layer.q, w.q, layer.q.rows()},
                                    {layer.k, w.k, layer.k.rows()},
                                    {layer.v, w.v, layer.v.rows()}};
  pass.matmul.multiply(products, w.normed, info.embedding_dim, n);
  add_row(pass.team, w.q, n, layer.q_bias);
  add_row(pass.team, w.k, n, layer.k_bias);
  add_row(pass.team, w.v, n, layer.v_bias);
  norm_and_rotate(model, layer, pass, layer.q_norm, info.num_heads, w.q);
  norm_and_rotate(model, layer, pass, layer.k_norm, info.num_kv_heads, w.k);
}

Status run_attention(const Decoder& model, const DecoderLayer& layer, const ForwardPass& pass) {
  const ModelInfo& info = pass.info;
  Workspace& w = pass.workspace;
  const int64_t n = pass.num_tokens();
  project_qkv(model, layer, pass);
  const AppendPlan& plan = pass.plan.plan(layer.cache_idx);
  if (pass.on_rows) {
    const LayerGroup& group = info.groups[static_cast<size_t>(layer.cache_idx)];
    pass.on_rows({group.layers[static_cast<size_t>(layer.cache_layer)],
                  plan.positions(),
                  {w.q, DType::f32, {n, info.num_heads, info.head_dim_k}},
                  {w.k, DType::f32, {n, info.num_kv_heads, info.head_dim_k}},
                  {w.v, DType::f32, {n, info.num_kv_heads, info.head_dim_v}}});
  }
  pass.caches.write(pass.plan, layer.cache_idx, layer.cache_layer,
                    {w.k, DType::f32, {n, info.num_kv_heads, info.head_dim_k}},
                    {w.v, DType::f32, {n, info.num_kv_heads, info.head_dim_v}});
  const LayerSegments segments =
      pass.caches.segments(pass.plan, layer.cache_idx, layer.cache_layer);
  AttentionCall call;
  call.q = ConstTensorView(w.q, DType::f32, {n, info.num_heads, info.head_dim_k});
  call.query_indptr = plan.query_indptr();
  call.segments = segments.span();
  call.params.scale = model.attention_scale;
  call.params.softcap = model.attention_softcap;
  call.params.window = pass.windows[static_cast<size_t>(layer.cache_idx)];
  call.out = TensorView(w.attention, DType::f32, {n, info.num_heads, info.head_dim_v});
  if (Status status = attend(pass.backend, call); !status.ok()) return status;
  multiply(pass, layer.attn_output, w.attention, w.delta);
  add_row(pass.team, w.delta, n, layer.output_bias);
  add_delta(model, layer.attn_post_norm, pass);
  return {};
}

void run_ffn(const Decoder& model, const DecoderLayer& layer, const ForwardPass& pass) {
  const ModelInfo& info = pass.info;
  Workspace& w = pass.workspace;
  const int64_t n = pass.num_tokens();
  rms_norm(pass.team, w.hidden, n, layer.ffn_norm, model.norm_epsilon, w.normed);
  const WeightProduct products[] = {{layer.gate, w.gate, layer.gate.rows()},
                                    {layer.up, w.up, layer.up.rows()}};
  pass.matmul.multiply(products, w.normed, info.embedding_dim, n);
  switch (model.activation) {
    case Activation::silu:
      silu_times(pass.team, w.gate, w.up, n, info.ffn_dim);
      break;
    case Activation::gelu_tanh:
      gelu_times(pass.team, w.gate, w.up, n, info.ffn_dim);
      break;
  }
  multiply(pass, layer.down, w.gate, w.delta);
  add_delta(model, layer.ffn_post_norm, pass);
}

}  // namespace

void read_hyperparameters(ModelFileReader& reader, ModelInfo& info) {
  info.num_layers = reader.integer("block_count", 1, kMaxLayers);
  info.embedding_dim = reader.integer("embedding_length", 1, kMaxWidth);
  info.ffn_dim = reader.integer_of_layers("feed_forward_length", 1, kMaxWidth, info.num_layers);
  info.context_length = reader.integer("context_length", 1, kMaxContext);
  if (reader.status().ok()) read_head_dims(reader, info);
  LayerGroup all;
  for (int i = 0; i < info.num_layers; ++i) all.layers.push_back(i);
  info.groups = {std::move(all)};
}

Decoder read_decoder(ModelFileReader& reader, ModelInfo& info, const DecoderParts& parts) {
  Decoder model;
  model.norm_epsilon = static_cast<float>(reader.positive("attention.layer_norm_rms_epsilon"));
  const double scale = reader.positive_or_none("attention.scale");
  model.attention_scale =
      static_cast<float>(scale > 0 ? scale : 1.0 / std::sqrt(static_cast<double>(info.head_dim_k)));
  model.attention_softcap = static_cast<float>(reader.positive_or_none("attn_logit_softcapping"));
  model.logit_softcap = static_cast<float>(reader.positive_or_none("final_logit_softcapping"));
  if (!reader.status().ok()) return model;
  model.ropes.push_back(read_rope(reader, info.rope_dim));
  model.embedding = reader.matrix("token_embd.weight", info.vocab_size, info.embedding_dim);
  // A missing tensor ends this early, so that a claimed number of layers costs nothing.
  for (int i = 0; i < info.num_layers && reader.status().ok(); ++i) {
    model.layers.push_back(read_layer(reader, info, parts, i));
  }
  model.output_norm = reader.vector("output_norm.weight", info.embedding_dim);
  info.tied_embeddings = !reader.has_tensor("output.weight");
  model.output = info.tied_embeddings
                     ? model.embedding
                     : reader.matrix("output.weight", info.vocab_size, info.embedding_dim);
  return model;
}

std::vector<bool> read_window_pattern(ModelFileReader& reader, int num_layers, int otherwise) {
  constexpr std::string_view kKey = "attention.sliding_window_pattern";
  if (auto flags = reader.flags_of_layers(kKey, num_layers)) return std::move(*flags);
  const int every = reader.integer_or(kKey, 0, kMaxLayers, otherwise);
  std::vector<bool> has_window;
  for (int i = 0; i < num_layers; ++i) has_window.push_back(every == 0 || (i + 1) % every != 0);
  return has_window;
}

void read_unplaced_window(ModelFileReader& reader, ModelInfo& info) {
  constexpr std::string_view kKey = "attention.sliding_window";
  if (!reader.has_key(kKey)) return;
  const int window = reader.integer_of_layers(kKey, 0, INT32_MAX, info.num_layers);
  if (!reader.status().ok() || window == 0) return;
  if (window < info.context_length) {
    reader.fail(unsupported(quoted(info.architecture + "." + std::string(kKey)) + " is " +
                            std::to_string(window) +
                            "; kvik does not compute a window below the trained context of " +
                            std::to_string(info.context_length) +
                            " tokens for this architecture, whose files do not say which layers "
                            "have it, and the results would be wrong without it"));
    return;
  }
  info.max_context = window;
}

Status check_reach(const ModelInfo& info, int64_t num_tokens) {
  if (!info.max_context || num_tokens <= *info.max_context) return {};
  return unsupported("a context of " + std::to_string(num_tokens) + " tokens goes beyond " +
                     quoted(info.architecture + ".attention.sliding_window") + ", which is " +
                     std::to_string(*info.max_context) +
                     " and which kvik does not compute for this architecture; take a context of " +
                     std::to_string(*info.max_context) + " tokens or fewer");
}

void group_windows(const std::vector<bool>& has_window, int window, int window_rope_idx,
                   ModelInfo& info, Decoder& model) {
  LayerGroup all;
  LayerGroup seeing_window{{}, window};
  for (size_t i = 0; i < has_window.size(); ++i) {
    LayerGroup& group = has_window[i] ? seeing_window : all;
    DecoderLayer& layer = model.layers[i];
    layer.cache_idx = has_window[i] ? 1 : 0;
    layer.cache_layer = static_cast<int>(group.layers.size());
    layer.rope_idx = has_window[i] ? window_rope_idx : 0;
    group.layers.push_back(static_cast<int>(i));
  }
  info.groups.clear();
  if (all.layers.empty()) {
    for (DecoderLayer& layer : model.layers) layer.cache_idx = 0;
  } else {
    info.groups.push_back(std::move(all));
  }
  if (!seeing_window.layers.empty()) info.groups.push_back(std::move(seeing_window));
}

Status Decoder::run_layers(const ForwardPass& pass) const {
  Workspace& w = pass.workspace;
  look_up(pass.team, embedding, pass.tokens, embedding_scale, w.hidden);
  for (size_t i = 0; i < ropes.size(); ++i) {
    rope_angles(ropes[i], pass.plan.plan(0).positions(), pass.first_position, w.angles[i].cos,
                w.angles[i].sin);
  }
  for (const DecoderLayer& layer : layers) {
    if (Status status = run_attention(*this, layer, pass); !status.ok()) return status;
    run_ffn(*this, layer, pass);
  }
  return {};
}

}  // namespace kvik::internal
