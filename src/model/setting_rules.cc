#include "model/setting_rules.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "model/gguf_parser.h"

namespace kvik::internal {
namespace {

// The value of a key: numbers (flags are 0 and 1; one per element of an array), or text.
struct Setting {
  std::vector<double> numbers;
  std::string_view text;  // of a single string
  bool is_text = false;
};

using Passes = bool (*)(const Setting& setting, const ModelInfo& info);

template <class Holds>
bool all_numbers(const Setting& setting, Holds holds) {
  return !setting.is_text && !setting.numbers.empty() &&
         std::all_of(setting.numbers.begin(), setting.numbers.end(), holds);
}

bool always(const Setting&, const ModelInfo&) { return true; }
bool never(const Setting&, const ModelInfo&) { return false; }
bool zero(const Setting& s, const ModelInfo&) {
  return all_numbers(s, [](double x) { return x == 0; });
}
bool one(const Setting& s, const ModelInfo&) {
  return all_numbers(s, [](double x) { return x == 1; });
}
bool zero_or_one(const Setting& s, const ModelInfo&) {
  return all_numbers(s, [](double x) { return x == 0 || x == 1; });
}
bool thirty_two(const Setting& s, const ModelInfo&) {
  return all_numbers(s, [](double x) { return x == 32; });
}
bool at_most_zero(const Setting& s, const ModelInfo&) {
  return all_numbers(s, [](double x) { return x <= 0; });
}
bool none_or_all_layers(const Setting& s, const ModelInfo& info) {
  return all_numbers(s, [&](double x) { return x == 0 || x >= info.num_layers; });
}
bool is_embedding_dim(const Setting& s, const ModelInfo& info) {
  return all_numbers(s, [&](double x) { return x == 0 || x == info.embedding_dim; });
}
bool is_head_dim_k(const Setting& s, const ModelInfo& info) {
  return all_numbers(s, [&](double x) { return x == info.head_dim_k; });
}
bool is_head_dim_v(const Setting& s, const ModelInfo& info) {
  return all_numbers(s, [&](double x) { return x == info.head_dim_v; });
}
bool is_rope_dim(const Setting& s, const ModelInfo& info) {
  return all_numbers(s, [&](double x) { return x == info.rope_dim; });
}
bool is_activation(const Setting& s, const ModelInfo& info) {
  if (info.architecture == "gemma3") {
    return s.text == "gelu_pytorch_tanh" || s.text == "gelu_tanh" || s.text == "gelu_new";
  }
  return s.text == "silu" || s.text == "swish";
}
// Both names stand for the order in which converters write the weights of "llama".
bool is_data_layout(const Setting& s, const ModelInfo& info) {
  return s.text == "reference" ||
         (info.architecture == "llama" && s.text == "Meta AI original pth");
}

struct Rule {
  std::string_view suffix;
  Passes passes;
  // What is lost otherwise. Where `passes` is `always`, the reason why nothing is.
  std::string_view what;
};

// Without effect whatever they say.
constexpr std::array kWithoutEffect = {
    Rule{"rope.scaling.finetuned", always, "says how the model was trained"},
    Rule{"attention.layer_norm_epsilon", always, "these architectures have RMS norms alone"},
    Rule{"attention.group_norm_epsilon", always, "these architectures have RMS norms alone"},
    Rule{"attention.group_norm_groups", always, "these architectures have RMS norms alone"},
    Rule{"pooling_type", always, "joins rows into an embedding; logits do not pass through it"},
    Rule{"classifier.pooling_type", always, "the same for scores of a classifier"},
};

// Refused unless the value stands for "none".
constexpr std::array kRefused = {
    // attention
    Rule{"attention.causal", one, "attention to later tokens"},
    Rule{"attention.sliding_window_pattern", zero, "windows in some of the layers"},
    Rule{"attention.clamp_kqv", zero, "clamped queries, keys and values"},
    Rule{"attention.max_alibi_bias", zero, "ALiBi"},
    Rule{"attention.output_scale", zero_or_one, "a scale of what attention gives"},
    Rule{"attention.value_scale", zero_or_one, "scaled values"},
    Rule{"attention.temperature_scale", zero, "queries scaled by position"},
    Rule{"attention.temperature_length", zero, "queries scaled by position"},
    Rule{"attention.key_length_swa", is_head_dim_k, "keys of another width in layers with windows"},
    Rule{"attention.value_length_swa", is_head_dim_v,
         "values of another width in layers with windows"},
    Rule{"attention.shared_kv_layers", zero, "keys and values that layers share"},
    Rule{"attention.relative_buckets_count", zero, "relative position biases"},
    Rule{"attention.q_lora_rank", zero, "queries of low rank"},
    Rule{"attention.recurrent_layers", zero, "recurrent layers"},
    Rule{"full_attention_interval", zero_or_one, "layers without attention"},
    // rope
    Rule{"rope.dimension_sections", zero, "rope by several coordinates"},
    Rule{"rope.dimension_count_swa", is_rope_dim, "another rope in layers with windows"},
    Rule{"rope.scaling.alpha", zero_or_one, "rope bases scaled by alpha"},
    Rule{"rope.scaling.attn_factor", one, "scaled rope magnitudes without YaRN"},
    Rule{"rope.scaling.yarn_attn_factor", one, "this second factor of rope magnitudes"},
    Rule{"rope.scaling.yarn_log_multiplier", zero, "rope magnitudes that grow with the context"},
    Rule{"rope.scaling.yarn_beta_fast", thirty_two, "YaRN, which rope.scaling.type does not name"},
    Rule{"rope.scaling.yarn_beta_slow", one, "YaRN, which rope.scaling.type does not name"},
    Rule{"rope.scaling.yarn_ext_factor", at_most_zero,
         "YaRN, which rope.scaling.type does not name"},
    Rule{"rope.freq_base_swa", never, "another rope in layers with windows"},
    // scales and caps
    Rule{"logit_scale", zero_or_one, "scaled logits"},
    Rule{"residual_scale", zero_or_one, "a scale of what layers add"},
    Rule{"embedding_scale", zero_or_one, "scaled embeddings"},
    Rule{"router_logit_softcapping", zero, "experts"},
    // shape of the layers
    Rule{"embedding_length_out", is_embedding_dim, "rows of another width at the end"},
    Rule{"embedding_length_per_layer_input", zero, "embeddings for each layer"},
    Rule{"hidden_activation", is_activation, "this activation"},
    Rule{"use_parallel_residual", zero, "attention and feed-forward parts side by side"},
    Rule{"swin_norm", zero, "norms in this place"},
    Rule{"rescale_every_n_layers", zero, "rows that are scaled between layers"},
    Rule{"nextn_predict_layers", zero, "layers that predict further tokens"},
    Rule{"n_deepstack_layers", zero, "images between the layers"},
    Rule{"num_loops", zero_or_one, "layers that run several times"},
    Rule{"tensor_data_layout", is_data_layout, "weights in this order"},
    // experts
    Rule{"expert_count", zero, "experts"},
    Rule{"expert_used_count", zero, "experts"},
    Rule{"expert_shared_count", zero, "experts"},
    Rule{"expert_group_count", zero, "experts"},
    Rule{"expert_group_used_count", zero, "experts"},
    Rule{"expert_feed_forward_length", zero, "experts"},
    Rule{"expert_shared_feed_forward_length", zero, "experts"},
    Rule{"expert_weights_scale", zero_or_one, "experts"},
    Rule{"expert_weights_norm", zero, "experts"},
    Rule{"expert_gating_func", zero, "experts"},
    Rule{"interleave_moe_layer_step", zero, "experts"},
    Rule{"moe_every_n_layers", zero, "experts"},
    Rule{"leading_dense_block_count", none_or_all_layers, "experts in the other layers"},
};

// Parts of a file for images; only text is computed.
constexpr std::array<std::string_view, 2> kOfImages = {"vision.", "mm."};

Setting read_setting(const GgufFile& file, const GgufEntry& entry) {
  const GgufValue& value = entry.value;
  Setting setting;
  const auto add = [&setting](const auto& numbers) {
    if (!numbers.ok()) return;
    for (const auto number : *numbers) setting.numbers.push_back(static_cast<double>(number));
  };
  const auto add_one = [&setting](const auto& number) {
    if (number.ok()) setting.numbers.push_back(static_cast<double>(*number));
  };
  switch (value.type) {
    case GgufType::string:
      setting.is_text = true;
      if (!value.is_array) setting.text = file.string(entry.key).value();
      break;
    case GgufType::f32:
    case GgufType::f64:
      value.is_array ? add(file.reals(entry.key)) : add_one(file.real(entry.key));
      break;
    case GgufType::boolean:
      value.is_array ? add(file.booleans(entry.key)) : add_one(file.boolean(entry.key));
      break;
    default:
      value.is_array ? add(file.integers(entry.key)) : add_one(file.integer(entry.key));
  }
  return setting;
}

std::string number_text(double number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", number);
  return text.data();
}

// "\"llama.logit_scale\" is 0.1"
std::string stated(const GgufEntry& entry, const Setting& setting) {
  constexpr size_t kMostShown = 4;
  std::string text = quoted(entry.key) + " is ";
  if (entry.value.type == GgufType::boolean && !entry.value.is_array) {
    return text + (setting.numbers.front() != 0 ? "true" : "false");
  }
  if (!entry.value.is_array) {
    return text + (setting.is_text           ? quoted(setting.text)
                   : setting.numbers.empty() ? "an integer beyond 2^63"
                                             : number_text(setting.numbers.front()));
  }
  if (setting.is_text) return text + "a list of strings";
  text += "[";
  for (size_t i = 0; i < std::min(setting.numbers.size(), kMostShown); ++i) {
    text += (i == 0 ? "" : ", ") + number_text(setting.numbers[i]);
  }
  return text + (setting.numbers.size() > kMostShown ? ", ...]" : "]");
}

bool is_refused_value(const Rule& rule, const Setting& setting, const ModelInfo& info) {
  // An empty list says nothing.
  const bool empty = !setting.is_text && setting.numbers.empty();
  return !empty && !rule.passes(setting, info);
}

}  // namespace

Status check_unread_setting(const GgufFile& file, const GgufEntry& entry, std::string_view prefix,
                            const ModelInfo& info) {
  const std::string_view suffix = entry.key.substr(prefix.size());
  const auto is_this = [suffix](const Rule& rule) { return rule.suffix == suffix; };
  if (std::any_of(kWithoutEffect.begin(), kWithoutEffect.end(), is_this)) return {};
  for (const std::string_view images : kOfImages) {
    if (suffix.starts_with(images)) return {};
  }
  const Setting setting = read_setting(file, entry);
  if (suffix == "vocab_size") {
    // The list of tokens gives the number; shapes are held to it.
    if (all_numbers(setting, [&](double x) { return x == info.vocab_size; })) return {};
    return {StatusCode::corrupt, stated(entry, setting) + ", but the file lists " +
                                     std::to_string(info.vocab_size) + " tokens"};
  }
  if (suffix == "rope.freq_base_swa") {
    const Result<double> base = file.real_or(std::string(prefix) + "rope.freq_base", 10000);
    if (base.ok() && all_numbers(setting, [&](double x) { return x == *base; })) return {};
  }
  const auto rule = std::find_if(kRefused.begin(), kRefused.end(), is_this);
  if (rule == kRefused.end()) {
    return unsupported(stated(entry, setting) +
                       ", a setting that kvik does not know and would ignore; results could be "
                       "wrong without it. Use another conversion of the model");
  }
  if (!is_refused_value(*rule, setting, info)) return {};
  return unsupported(stated(entry, setting) + "; kvik does not compute " + std::string(rule->what) +
                     " for this architecture, and the results would be wrong without it");
}

Status check_general_settings(const GgufFile& file) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kKinds = {{
      {"adapter", "an adapter (LoRA) for a model"},
      {"mmproj", "the image part of a model"},
      {"imatrix", "an importance matrix for quantizing"},
      {"vocab", "a vocabulary without a model"},
      {"control_vector", "a control vector for a model"},
  }};
  constexpr std::string_view kType = "general.type";
  const Result<std::string_view> type = file.string_or(kType, "model");
  if (!type.ok()) return type.status();
  if (*type != "model") {
    std::string message = quoted(kType) + " is " + quoted(*type);
    for (const auto& [name, meaning] : kKinds) {
      if (name == *type) message += ": the file is " + std::string(meaning);
    }
    return unsupported(message + "; give the file of the model itself");
  }
  constexpr std::string_view kPacking = "general.quantization_version";
  const Result<int64_t> packing = file.integer_or(kPacking, 2);
  if (!packing.ok()) return packing.status();
  if (*packing != 2) {
    return unsupported(quoted(kPacking) + " is " + std::to_string(*packing) +
                       "; kvik reads weights packed by version 2. Quantize the model again");
  }
  return {};
}

}  // namespace kvik::internal
