#include "options.h"

#include <array>
#include <cctype>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include "arguments.h"
#include "arrays.h"
#include "environment.h"
#include "errors.h"
#include "kvik/format/kv_names.h"

namespace nb = nanobind;

namespace kvik::python {
namespace {

// The last word of a dtype's text, without the mark that keeps some names off Python's own.
std::string dtype_word(nb::handle dtype) {
  const nb::object named = nb::getattr(dtype, "__name__", dtype);
  std::string text = to_text(nb::str(named), "dtype");
  if (const size_t dot = text.rfind('.'); dot != std::string::npos) text = text.substr(dot + 1);
  while (!text.empty() && text.back() == '_') text.pop_back();
  return text;
}

std::optional<DType> find_dtype(std::string_view word) {
  if (word == "float32" || word == "f32" || word == "fp32") return DType::f32;
  if (word == "float16" || word == "f16" || word == "fp16" || word == "half") return DType::f16;
  if (word == "bfloat16" || word == "bf16") return DType::bf16;
  return std::nullopt;
}

int64_t int_option(const char* name, nb::handle value) { return to_integer(value, name); }
bool bool_option(const char* name, nb::handle value) { return to_flag(value, name); }
std::string text_option(const char* name, nb::handle value) { return to_text(value, name); }

// Zero and below are how MTPLX says none.
std::optional<int64_t> positive_option(const char* name, nb::handle value) {
  const int64_t number = int_option(name, value);
  return number > 0 ? std::optional(number) : std::nullopt;
}

using Setter = void (*)(PagedKVCacheOptions&, nb::handle);
struct NamedOption {
  const char* name;
  Setter set;
};
constexpr std::array kOptions = {
    NamedOption{"block_size", [](PagedKVCacheOptions& o,
                                 nb::handle v) { o.block_size = int_option("block_size", v); }},
    NamedOption{"num_blocks", [](PagedKVCacheOptions& o,
                                 nb::handle v) { o.num_blocks = int_option("num_blocks", v); }},
    NamedOption{"dynamic", [](PagedKVCacheOptions& o,
                              nb::handle v) { o.dynamic = bool_option("dynamic", v); }},
    NamedOption{"context_window",
                [](PagedKVCacheOptions& o, nb::handle v) {
                  o.context_window = positive_option("context_window", v);
                }},
    NamedOption{"max_tokens", [](PagedKVCacheOptions& o,
                                 nb::handle v) { o.max_tokens = int_option("max_tokens", v); }},
    NamedOption{"turboquant_config",
                [](PagedKVCacheOptions& o, nb::handle v) { o.turboquant = parse_turboquant(v); }},
    NamedOption{"kv_quant_config",
                [](PagedKVCacheOptions& o, nb::handle v) { o.kv_quant = parse_kv_quant(v); }},
    NamedOption{"kv_format",
                [](PagedKVCacheOptions& o, nb::handle v) {
                  o.format = take(resolve_format_name(text_option("kv_format", v)));
                }},
    NamedOption{"attention_impl",
                [](PagedKVCacheOptions& o, nb::handle v) {
                  o.route = take(parse_paged_route(text_option("attention_impl", v)));
                }},
    NamedOption{"sliding_window",
                [](PagedKVCacheOptions& o, nb::handle v) {
                  o.sliding_window = positive_option("sliding_window", v);
                }},
    NamedOption{"max_q_len", [](PagedKVCacheOptions& o,
                                nb::handle v) { o.max_q_len = positive_option("max_q_len", v); }},
    NamedOption{"partitioned", [](PagedKVCacheOptions& o,
                                  nb::handle v) { o.partitioned = bool_option("partitioned", v); }},
    NamedOption{"partition_threshold",
                [](PagedKVCacheOptions& o, nb::handle v) {
                  o.partition_threshold = int_option("partition_threshold", v);
                }},
    NamedOption{"forbid_dense_fallback",
                [](PagedKVCacheOptions& o, nb::handle v) {
                  o.forbid_dense_fallback = bool_option("forbid_dense_fallback", v);
                }},
    NamedOption{"forbid_active_arrays",
                [](PagedKVCacheOptions& o, nb::handle v) {
                  o.forbid_active_arrays = bool_option("forbid_active_arrays", v);
                }},
};

void set_options(PagedKVCacheOptions& options, const nb::dict& given) {
  for (const auto [key, value] : given) {
    const auto name = to_text(key, "the name of an option");
    const NamedOption* found = nullptr;
    for (const NamedOption& option : kOptions) {
      if (name == option.name) found = &option;
    }
    if (found == nullptr) {
      std::string names;
      for (const NamedOption& option : kOptions) names += std::string(" ") + option.name;
      throw nb::type_error(
          ("a paged cache has no option \"" + name + "\"; its options:" + names).c_str());
    }
    if (!value.is_none()) found->set(options, value);
  }
}

template <class T>
void assign(T& to, const std::optional<T>& from) {
  if (from) to = *from;
}

// Overwrites `to` with the variable where it is set.
void read_constructor_variables(PagedKVCacheOptions& options) {
  assign(options.dynamic, take(flag_of(variables::kDynamic)));
  options.context_window = take(positive_number_of(variables::kContextWindow));
  if (const auto name = text_of(variables::kAttentionImpl)) {
    options.route = take(parse_paged_route(*name));
  }
  options.max_q_len = take(positive_number_of(variables::kMaxQLen));
  assign(options.partitioned, take(flag_of(variables::kPartitioned)));
  assign(options.partition_threshold, take(number_of(variables::kPartitionThreshold)));
  options.sliding_window = take(positive_number_of(variables::kSlidingWindow));
  assign(options.forbid_active_arrays, take(flag_of(variables::kForbidActiveArrays)));
}

void read_quantization_variables(PagedKVCacheOptions& options) {
  auto mode = text_of(variables::kKvQuant);
  if (!mode) mode = text_of(variables::kKvQuantShort);
  if (mode) {
    const std::optional<KvCode> code = take(parse_kv_quant_mode(*mode));
    if (code) options.kv_quant = KvQuantConfig{code};
  }
  if (take(flag_of(variables::kTurboQuant)).value_or(false)) {
    TurboQuantConfig config;
    if (const auto name = text_of(variables::kTurboQuantKey)) {
      config.k_quant = take(parse_turboquant_key(*name));
    }
    if (const auto name = text_of(variables::kTurboQuantValue)) {
      config.v_quant = take(parse_turboquant_value(*name));
    }
    options.turboquant = config;
  }
}

// The blocks that a dynamic cache starts with.
int64_t first_num_blocks(const PagedKVCacheOptions& options) {
  InitialBlocksOptions rule;
  rule.num_blocks = options.num_blocks;
  rule.block_size = options.block_size;
  rule.dynamic = options.dynamic;
  assign(rule.min_blocks, take(number_of(variables::kDynamicMinBlocks)));
  assign(rule.tokens, take(number_of(variables::kDynamicTokens)));
  assign(rule.previous_high_water, take(number_of(variables::kDynamicHighWater)));
  assign(rule.margin, take(number_of(variables::kDynamicMargin)));
  return take(initial_num_blocks(rule));
}

// The value of a config's key; none where it is missing or None. Throws for keys not in `known`.
std::map<std::string, nb::object> items_of(const char* what, nb::handle config,
                                           std::initializer_list<const char*> known) {
  std::map<std::string, nb::object> items;
  if (!nb::isinstance<nb::dict>(config)) {
    throw nb::type_error(
        (std::string(what) + " must be a dict or None, not " + nb::type_name(config.type()).c_str())
            .c_str());
  }
  for (const auto [key, value] : nb::borrow<nb::dict>(config)) {
    const std::string name = to_text(key, std::string("a key of ") + what);
    bool is_known = false;
    std::string names;
    for (const char* const each : known) {
      is_known = is_known || name == each;
      names += std::string(" ") + each;
    }
    if (!is_known) {
      throw nb::value_error(
          (std::string(what) + " has no key \"" + name + "\"; its keys:" + names).c_str());
    }
    if (!value.is_none()) items[name] = nb::borrow(value);
  }
  return items;
}

std::string text_of_item(const char* name, nb::handle item) { return to_text(item, name); }

}  // namespace

DType parse_dtype(nb::handle dtype) {
  const std::string word = dtype_word(dtype);
  if (const std::optional<DType> found = find_dtype(word)) return *found;
  throw nb::value_error(
      ("\"" + word + "\" is no dtype of rows; those are float32, float16, bfloat16").c_str());
}

MaskType parse_mask_type(nb::handle dtype) {
  const std::string word = dtype_word(dtype);
  if (word == "bool") return MaskType::boolean;
  if (const std::optional<DType> found = find_dtype(word)) {
    return mask_type_of(*found);
  }
  throw nb::value_error(
      ("\"" + word + "\" is no dtype of masks; those are bool, float32, float16, bfloat16")
          .c_str());
}

std::optional<KvQuantConfig> parse_kv_quant(nb::handle config) {
  if (config.is_none()) return std::nullopt;
  KvQuantConfig result;
  if (nb::isinstance<nb::str>(config)) {
    result.mode = take(parse_kv_quant_mode(to_text(config, "kv_quant_config")));
  } else {
    const auto items = items_of("kv_quant_config", config, {"mode", "dtype"});
    if (const auto mode = items.find("mode"); mode != items.end()) {
      result.mode = take(parse_kv_quant_mode(text_of_item("mode", mode->second)));
    }
    if (const auto dtype = items.find("dtype"); dtype != items.end()) {
      result.mirror_dtype = parse_dtype(dtype->second);
    }
  }
  return result.mode ? std::optional(result) : std::nullopt;
}

std::optional<TurboQuantConfig> parse_turboquant(nb::handle config) {
  if (config.is_none() || config.is(nb::bool_(false))) return std::nullopt;
  TurboQuantConfig result;
  const auto items = items_of("turboquant_config", config, {"k_quant", "v_quant", "dtype"});
  if (const auto k = items.find("k_quant"); k != items.end()) {
    result.k_quant = take(parse_turboquant_key(text_of_item("k_quant", k->second)));
  }
  if (const auto v = items.find("v_quant"); v != items.end()) {
    result.v_quant = take(parse_turboquant_value(text_of_item("v_quant", v->second)));
  }
  if (const auto dtype = items.find("dtype"); dtype != items.end()) {
    result.mirror_dtype = parse_dtype(dtype->second);
  }
  return result;
}

PagedKVCacheOptions paged_options(const Process& process, const nb::dict& given, Reads reads) {
  PagedKVCacheOptions options;
  read_constructor_variables(options);
  if (reads == Reads::of_installer) {
    assign(options.block_size, take(number_of(variables::kBlockSize)));
    assign(options.num_blocks, take(number_of(variables::kNumBlocks)));
    read_quantization_variables(options);
  }
  set_options(options, given);
  // Whoever names a route has chosen already.
  const bool names_route = text_of(variables::kAttentionImpl).has_value() ||
                           !given.attr("get")("attention_impl", nb::none()).is_none();
  const bool is_kv_quant = options.kv_quant && !options.turboquant;
  if (is_kv_quant && !names_route && !take(flag_of(variables::kKvQuantKernel)).value_or(true)) {
    options.route = PagedRoute::mirror;
  }
  if (reads == Reads::of_installer && options.dynamic) {
    options.num_blocks = first_num_blocks(options);
  }
  const std::shared_ptr<Fallbacks> fallbacks = process.fallbacks;
  options.on_fallback = [fallbacks](const std::string& text) { fallbacks->add(text); };
  return options;
}

nb::dict keywords_of(const PagedKVCacheOptions& options) {
  const auto text = [](std::string_view view) { return nb::str(view.data(), view.size()); };
  // The parsers know TurboQuant's types without the prefix that tells keys and values apart.
  const auto turbo_name = [&](KvCode code) { return text(kv_code_name(code).substr(4)); };
  const auto config = [&](const std::optional<DType>& mirror_dtype) {
    nb::dict dict;
    if (mirror_dtype) dict["dtype"] = text(dtype_name(*mirror_dtype));
    return dict;
  };
  const bool is_low_bit = options.turboquant || options.kv_quant || options.format;
  nb::dict given;
  if (options.turboquant) {
    nb::dict dict = config(options.turboquant->mirror_dtype);
    dict["k_quant"] = turbo_name(options.turboquant->k_quant);
    dict["v_quant"] = turbo_name(options.turboquant->v_quant);
    given["turboquant_config"] = dict;
  }
  if (options.kv_quant && options.kv_quant->mode) {
    nb::dict dict = config(options.kv_quant->mirror_dtype);
    dict["mode"] = text(kv_code_name(*options.kv_quant->mode));
    given["kv_quant_config"] = dict;
  }
  if (options.format) {
    const auto name = [](KvCode code) { return std::string(kv_code_name(code)); };
    given["kv_format"] = name(options.format->k) + ":" + name(options.format->v);
  }
  given["block_size"] = options.block_size;
  given["num_blocks"] = options.num_blocks;
  given["dynamic"] = options.dynamic;
  given["context_window"] = options.context_window.value_or(0);
  given["max_tokens"] = options.max_tokens;
  given["attention_impl"] = text(paged_route_name(options.route, is_low_bit));
  given["sliding_window"] = options.sliding_window.value_or(0);
  given["max_q_len"] = options.max_q_len.value_or(0);
  given["partitioned"] = options.partitioned;
  given["partition_threshold"] = options.partition_threshold;
  given["forbid_dense_fallback"] = options.forbid_dense_fallback;
  given["forbid_active_arrays"] = options.forbid_active_arrays;
  return given;
}

PagedKVCacheOptions changed_options(const PagedKVCacheOptions& current, const nb::dict& given) {
  PagedKVCacheOptions options = current;
  set_options(options, given);
  return options;
}

}  // namespace kvik::python
