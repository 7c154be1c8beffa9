// What a forward pass reads beside the weights, as text.
#include <cstdio>
#include <string>
#include <string_view>

#include "model/model_parts.h"

namespace kvik {
namespace {

class Lines {
 public:
  void add(std::string_view name, int64_t value) { line(name, std::to_string(value)); }
  void add_real(std::string_view name, double value) { line(name, hex(value)); }
  void add_text(std::string_view name, std::string_view value) { line(name, value); }
  std::string take() { return std::move(text_); }

  static std::string hex(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%a", value);
    return text;
  }

 private:
  void line(std::string_view name, std::string_view value) {
    text_.append(name).append(" ").append(value).append("\n");
  }
  std::string text_;
};

void add_shape(const ModelInfo& info, Lines& lines) {
  lines.add_text("architecture", info.architecture);
  lines.add("num_layers", info.num_layers);
  lines.add("embedding_dim", info.embedding_dim);
  lines.add("ffn_dim", info.ffn_dim);
  lines.add("num_heads", info.num_heads);
  lines.add("num_kv_heads", info.num_kv_heads);
  lines.add("head_dim_k", info.head_dim_k);
  lines.add("head_dim_v", info.head_dim_v);
  lines.add("rope_dim", info.rope_dim);
  lines.add("vocab_size", info.vocab_size);
  lines.add("tied_embeddings", info.tied_embeddings ? 1 : 0);
}

void add_rope(const internal::Rope& rope, Lines& lines) {
  lines.add_real("rope.magnitude", rope.magnitude);
  std::string frequencies;
  for (const double frequency : rope.frequency) frequencies += Lines::hex(frequency) + " ";
  lines.add_text("rope.frequencies", frequencies);
}

}  // namespace

std::string Model::settings() const {
  const internal::Decoder& decoder = parts_->decoder;
  Lines lines;
  add_shape(parts_->info, lines);
  lines.add_real("norm_epsilon", static_cast<double>(decoder.norm_epsilon));
  lines.add_real("embedding_scale", static_cast<double>(decoder.embedding_scale));
  lines.add_real("attention_scale", static_cast<double>(decoder.attention_scale));
  lines.add_real("attention_softcap", static_cast<double>(decoder.attention_softcap));
  lines.add_real("logit_softcap", static_cast<double>(decoder.logit_softcap));
  lines.add("activation", static_cast<int64_t>(decoder.activation));
  lines.add("rope.pairs", static_cast<int64_t>(decoder.rope_pairs));
  for (const internal::Rope& rope : decoder.ropes) add_rope(rope, lines);
  for (const internal::DecoderLayer& layer : decoder.layers) {
    const LayerGroup& group = parts_->info.groups[static_cast<size_t>(layer.cache_idx)];
    lines.add("layer.rope", layer.rope_idx);
    lines.add("layer.window", group.window.value_or(0));
  }
  return lines.take();
}

}  // namespace kvik
