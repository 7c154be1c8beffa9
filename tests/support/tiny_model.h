// A llama model small enough to compute in double with plain loops: random weights in a GGUF file
// in memory, and the oracle of its forward pass.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kvik/model/gguf.h"
#include "kvik/model/model.h"
#include "kvik/model/weights.h"
#include "support/gguf_writer.h"
#include "support/random.h"
#include "support/tiny_vocabulary.h"

namespace kvik::test {

struct TinyShape {
  int num_layers = 2;
  int embedding_dim = 32;
  int ffn_dim = 48;
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 8;
  int rope_dim = 8;
  int context_length = 256;
  double rope_base = 10000;
  double rope_factor = 1;  // linear scaling
  bool has_rope_factors = false;
  bool is_tied = true;

  std::vector<std::string> more_pieces = {};  // normal tokens behind those of tiny_vocabulary()

  int vocab_size() const {
    return static_cast<int>(tiny_vocabulary().pieces.size() + more_pieces.size());
  }
};

// What a forward pass does differently by metadata that a test writes.
struct TinySettings {
  double attention_scale = 0;                       // 0: 1 / sqrt(head_dim)
  double attention_softcap = 0, logit_softcap = 0;  // 0: none
  size_t window = SIZE_MAX;           // each token sees the newest so many, itself included
  std::vector<bool> has_window = {};  // per layer; empty: all
};

// Builds the file; `change` may damage its parts before they are written.
class TinyModel {
 public:
  using Tensors = std::map<std::string, testing::TensorSpec>;

  explicit TinyModel(TinyShape shape = {}, uint64_t seed = 1) : shape_(shape) {
    const auto width = static_cast<uint64_t>(shape.embedding_dim);
    const auto ffn = static_cast<uint64_t>(shape.ffn_dim);
    const auto dim = static_cast<uint64_t>(shape.head_dim);
    const auto q_width = static_cast<uint64_t>(shape.num_heads) * dim;
    const auto kv_width = static_cast<uint64_t>(shape.num_kv_heads) * dim;
    const auto vocab = static_cast<uint64_t>(shape.vocab_size());
    seed_ = seed * 1000;
    add("token_embd.weight", {width, vocab}, 0.5f, 0);
    for (int i = 0; i < shape.num_layers; ++i) {
      const std::string prefix = "blk." + std::to_string(i) + ".";
      add(prefix + "attn_norm.weight", {width}, 0.1f, 1);
      add(prefix + "attn_q.weight", {width, q_width}, 0.3f, 0);
      add(prefix + "attn_k.weight", {width, kv_width}, 0.3f, 0);
      add(prefix + "attn_v.weight", {width, kv_width}, 0.2f, 0);
      add(prefix + "attn_output.weight", {q_width, width}, 0.2f, 0);
      add(prefix + "ffn_norm.weight", {width}, 0.1f, 1);
      add(prefix + "ffn_gate.weight", {width, ffn}, 0.2f, 0);
      add(prefix + "ffn_up.weight", {width, ffn}, 0.2f, 0);
      add(prefix + "ffn_down.weight", {ffn, width}, 0.2f, 0);
    }
    add("output_norm.weight", {width}, 0.1f, 1);
    if (!shape.is_tied) add("output.weight", {width, vocab}, 0.3f, 0);
    if (shape.has_rope_factors) {
      add("rope_freqs.weight", {static_cast<uint64_t>(shape.rope_dim / 2)}, 0.2f, 2);
    }
  }

  Tensors& tensors() { return tensors_; }
  // Called on the metadata before it is written, to add or to damage.
  std::function<void(testing::GgufWriter&)> more_metadata = [](testing::GgufWriter&) {};
  std::string architecture = "llama";
  std::map<std::string, uint32_t> integers_changed;             // by key suffix
  std::map<std::string, std::vector<uint32_t>> arrays_instead;  // of such an integer

  const TinyShape& shape() const { return shape_; }
  const std::vector<std::byte>& bytes() {
    write();
    return bytes_;
  }
  // The model of the bytes, which this object keeps. Requires: called once.
  Result<std::shared_ptr<const Model>> load() {
    write();
    Result<GgufFile> file = GgufFile::parse(bytes_);
    if (!file.ok()) return file.status();
    return Model::from_gguf(std::move(file).value());
  }

  // Logits after each token, in double, with keys and values kept as they are; of the architectures
  // "llama" (with biases, where there are such tensors) and "gemma3".
  std::vector<std::vector<double>> logits(const std::vector<TokenId>& tokens,
                                          const TinySettings& settings = {}) const;
  std::vector<std::vector<double>> logits(const std::vector<TokenId>& tokens, size_t window) const {
    TinySettings settings;
    settings.window = window;
    return logits(tokens, settings);
  }

 private:
  using Row = std::vector<double>;

  void add(const std::string& name, std::vector<uint64_t> dims, float scale, float mean) {
    int64_t count = 1;
    for (const uint64_t dim : dims) count *= static_cast<int64_t>(dim);
    std::vector<float> values = bell(++seed_, count);
    for (float& value : values) value = value * scale + mean;
    testing::TensorSpec spec;
    spec.name = name;
    spec.shape = std::move(dims);
    spec.data.resize(values.size() * sizeof(float));
    std::memcpy(spec.data.data(), values.data(), spec.data.size());
    tensors_[name] = std::move(spec);
  }

  void write() {
    Vocabulary vocabulary = tiny_vocabulary();
    for (const std::string& piece : shape_.more_pieces) {
      add_token(vocabulary, piece, TokenType::normal);
    }
    testing::GgufWriter writer;
    writer.add_string("general.architecture", architecture);
    const auto integer = [&](const std::string& suffix, int value) {
      if (const auto array = arrays_instead.find(suffix); array != arrays_instead.end()) {
        writer.add_array(architecture + "." + suffix, GgufType::u32, array->second);
        return;
      }
      const auto changed = integers_changed.find(suffix);
      writer.add_u32(architecture + "." + suffix, changed == integers_changed.end()
                                                      ? static_cast<uint32_t>(value)
                                                      : changed->second);
    };
    integer("block_count", shape_.num_layers);
    integer("context_length", shape_.context_length);
    integer("embedding_length", shape_.embedding_dim);
    integer("feed_forward_length", shape_.ffn_dim);
    integer("attention.head_count", shape_.num_heads);
    integer("attention.head_count_kv", shape_.num_kv_heads);
    integer("attention.key_length", shape_.head_dim);
    integer("attention.value_length", shape_.head_dim);
    integer("rope.dimension_count", shape_.rope_dim);
    writer.add_f32(architecture + ".rope.freq_base", static_cast<float>(shape_.rope_base));
    writer.add_f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
    if (shape_.rope_factor != 1) {
      writer.add_string(architecture + ".rope.scaling.type", "linear");
      writer.add_f32(architecture + ".rope.scaling.factor", static_cast<float>(shape_.rope_factor));
    }
    writer.add_string("tokenizer.ggml.model", vocabulary.model);
    writer.add_string("tokenizer.ggml.pre", vocabulary.pre);
    writer.add_strings("tokenizer.ggml.tokens", vocabulary.pieces);
    writer.add_array("tokenizer.ggml.token_type", GgufType::i32, vocabulary.token_types);
    writer.add_strings("tokenizer.ggml.merges", vocabulary.merges);
    writer.add_u32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(*vocabulary.bos));
    writer.add_u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(*vocabulary.eos));
    more_metadata(writer);
    for (const auto& [name, spec] : tensors_) writer.add_tensor(spec);
    bytes_ = writer.bytes();
  }

  std::vector<float> floats(const std::string& name) const {
    const std::vector<std::byte>& data = tensors_.at(name).data;
    std::vector<float> values(data.size() / sizeof(float));
    std::memcpy(values.data(), data.data(), data.size());
    return values;
  }
  Row product(const std::string& name, const Row& x) const {
    const std::vector<float> w = floats(name);
    Row y(w.size() / x.size());
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t i = 0; i < x.size(); ++i) y[r] += double{w[r * x.size() + i]} * x[i];
    }
    return y;
  }
  Row normed(const std::string& name, const Row& x) const {
    const std::vector<float> w = floats(name);
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + double{1e-5f});
    Row y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * double{w[i]};
    return y;
  }
  bool is_gemma() const { return architecture == "gemma3"; }
  // A product and its bias, if there is one.
  Row biased_product(const std::string& name, const Row& x) const {
    Row y = product(name + ".weight", x);
    if (!tensors_.contains(name + ".bias")) return y;
    const std::vector<float> bias = floats(name + ".bias");
    for (size_t i = 0; i < y.size(); ++i) y[i] += double{bias[i]};
    return y;
  }
  // Norms each head by itself.
  void norm_heads(const std::string& name, Row& row) const {
    const auto dim = static_cast<ptrdiff_t>(shape_.head_dim);
    for (auto head = row.begin(); head != row.end(); head += dim) {
      const Row one = normed(name, Row(head, head + dim));
      std::copy(one.begin(), one.end(), head);
    }
  }
  void rotate(Row& row, int position, bool sees_window) const {
    // Layers with a window have a rope of their own in gemma3.
    const bool local = is_gemma() && sees_window;
    const double base = local ? 10000 : shape_.rope_base;
    const double factor = local ? 1 : shape_.rope_factor;
    const std::vector<float> factors =
        shape_.has_rope_factors ? floats("rope_freqs.weight") : std::vector<float>();
    const auto dim = static_cast<size_t>(shape_.head_dim);
    const auto num_pairs = static_cast<size_t>(shape_.rope_dim / 2);
    for (size_t head = 0; head < row.size() / dim; ++head) {
      for (size_t i = 0; i < num_pairs; ++i) {
        double angle =
            position / factor * std::pow(base, -2.0 * static_cast<double>(i) / shape_.rope_dim);
        if (!factors.empty()) angle /= double{factors[i]};
        double& a = row[head * dim + (is_gemma() ? i : 2 * i)];
        double& b = row[head * dim + (is_gemma() ? i + num_pairs : 2 * i + 1)];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    }
  }
  // Attention of the newest query over the keys from `first`.
  Row attend(const Row& q, const std::vector<Row>& keys, const std::vector<Row>& values,
             size_t first, const TinySettings& settings) const {
    const auto dim = static_cast<size_t>(shape_.head_dim);
    const double scale = settings.attention_scale != 0 ? settings.attention_scale
                                                       : 1 / std::sqrt(static_cast<double>(dim));
    Row out(q.size());
    for (size_t head = 0; head < static_cast<size_t>(shape_.num_heads); ++head) {
      const size_t kv = head / static_cast<size_t>(shape_.num_heads / shape_.num_kv_heads) * dim;
      Row scores(keys.size());
      double sum = 0;
      for (size_t t = first; t < keys.size(); ++t) {
        for (size_t d = 0; d < dim; ++d) scores[t] += q[head * dim + d] * keys[t][kv + d];
        scores[t] = std::exp(capped(scores[t] * scale, settings.attention_softcap));
        sum += scores[t];
      }
      for (size_t t = first; t < keys.size(); ++t) {
        for (size_t d = 0; d < dim; ++d) out[head * dim + d] += scores[t] / sum * values[t][kv + d];
      }
    }
    return out;
  }
  static double capped(double x, double cap) { return cap == 0 ? x : cap * std::tanh(x / cap); }
  double activated(double x) const {
    if (!is_gemma()) return x / (1 + std::exp(-x));
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  }

  TinyShape shape_;
  uint64_t seed_ = 0;
  Tensors tensors_;
  std::vector<std::byte> bytes_;
};

inline std::vector<std::vector<double>> TinyModel::logits(const std::vector<TokenId>& tokens,
                                                          const TinySettings& settings) const {
  const std::vector<float> embedding = floats("token_embd.weight");
  const auto width = static_cast<size_t>(shape_.embedding_dim);
  const auto num_layers = static_cast<size_t>(shape_.num_layers);
  std::vector<std::vector<Row>> keys(num_layers);
  std::vector<std::vector<Row>> values(num_layers);
  std::vector<Row> all;
  for (size_t position = 0; position < tokens.size(); ++position) {
    const auto row = embedding.begin() + static_cast<ptrdiff_t>(width) * tokens[position];
    Row hidden(row, row + static_cast<ptrdiff_t>(width));
    if (is_gemma()) {
      for (double& x : hidden) x *= std::sqrt(static_cast<double>(width));
    }
    const auto add = [&](const Row& delta, const std::string& post_norm) {
      const Row added = is_gemma() ? normed(post_norm, delta) : delta;
      for (size_t i = 0; i < width; ++i) hidden[i] += added[i];
    };
    for (size_t layer = 0; layer < num_layers; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      const bool sees_window = settings.window != SIZE_MAX &&
                               (settings.has_window.empty() || settings.has_window[layer]);
      const Row x = normed(prefix + "attn_norm.weight", hidden);
      Row q = biased_product(prefix + "attn_q", x);
      Row k = biased_product(prefix + "attn_k", x);
      if (is_gemma()) {
        norm_heads(prefix + "attn_q_norm.weight", q);
        norm_heads(prefix + "attn_k_norm.weight", k);
      }
      rotate(q, static_cast<int>(position), sees_window);
      rotate(k, static_cast<int>(position), sees_window);
      keys[layer].push_back(std::move(k));
      values[layer].push_back(biased_product(prefix + "attn_v", x));
      const size_t first =
          sees_window && position + 1 > settings.window ? position + 1 - settings.window : 0;
      const Row seen = attend(q, keys[layer], values[layer], first, settings);
      add(biased_product(prefix + "attn_output", seen), prefix + "post_attention_norm.weight");
      const Row z = normed(prefix + "ffn_norm.weight", hidden);
      Row gate = product(prefix + "ffn_gate.weight", z);
      const Row up = product(prefix + "ffn_up.weight", z);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = activated(gate[i]) * up[i];
      add(product(prefix + "ffn_down.weight", gate), prefix + "post_ffw_norm.weight");
    }
    Row logits = product(shape_.is_tied ? "token_embd.weight" : "output.weight",
                         normed("output_norm.weight", hidden));
    for (double& x : logits) x = capped(x, settings.logit_softcap);
    all.push_back(std::move(logits));
  }
  return all;
}

// Token ids in the tiny vocabulary, none of them special.
inline std::vector<TokenId> tiny_tokens(uint64_t seed, int count) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(below(seed, static_cast<uint64_t>(i), 256)));
  }
  return tokens;
}

}  // namespace kvik::test
