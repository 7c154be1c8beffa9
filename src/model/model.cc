#include "kvik/model/model.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/growth_rule.h"
#include "kvik/core/checked_math.h"
#include "kvik/core/thread_team.h"
#include "kvik/format/tile.h"
#include "model/gguf_parser.h"
#include "model/model_file.h"
#include "model/model_parts.h"
#include "model/setting_rules.h"
#include "model/vocabulary_check.h"

namespace kvik {
namespace {

using internal::Decoder;
using internal::ModelFileReader;
using internal::ModelParts;

Status add_end_token(const GgufFile& file, std::string_view key, ModelInfo& info) {
  if (file.find(key) == nullptr) return {};
  const Result<int64_t> id = file.integer(key);
  if (!id.ok()) return id.status();
  if (*id < 0 || *id >= info.vocab_size) {
    return {StatusCode::corrupt, quoted(key) + " is " + std::to_string(*id) + "; the model has " +
                                     std::to_string(info.vocab_size) + " tokens"};
  }
  info.end_tokens.push_back(static_cast<TokenId>(*id));
  return {};
}

// The whole token that the template writes behind an answer; none if it cannot be rendered so.
std::optional<TokenId> end_of_answer(const ChatTemplate& chat_template,
                                     const Tokenizer& tokenizer) {
  constexpr std::string_view kAnswer = "kvik-answer";
  ChatInput input;
  input.messages.emplace_back("user", "kvik-question");
  input.messages.emplace_back("assistant", std::string(kAnswer));
  const auto spelled = [&tokenizer](std::optional<TokenId> id) {
    return id ? std::string(tokenizer.piece(*id).value()) : std::string();
  };
  input.bos_token = spelled(tokenizer.bos());
  input.eos_token = spelled(tokenizer.eos());
  const Result<RenderedChat> chat = chat_template.render(input);
  if (!chat.ok()) return std::nullopt;
  std::string_view rest = chat->text();
  const size_t answer = rest.rfind(kAnswer);
  if (answer == std::string_view::npos) return std::nullopt;
  rest.remove_prefix(answer + kAnswer.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" \n\r\t"), rest.size()));
  const Result<std::vector<TokenId>> ids =
      tokenizer.encode(rest, {.add_special = false, .parse_special = true});
  if (!ids.ok() || ids->empty() || ids->front() == tokenizer.bos()) return std::nullopt;
  const TokenId first = ids->front();
  const std::string_view piece = tokenizer.piece(first).value();
  if (!rest.starts_with(piece) || !tokenizer.is_marker(first)) return std::nullopt;
  return first;
}

Status find_end_tokens(const GgufFile& file, const Tokenizer& tokenizer,
                       const Result<ChatTemplate>& chat_template, ModelInfo& info) {
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    if (Status status = add_end_token(file, key, info); !status.ok()) return status;
  }
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_marker(id) && internal::ends_a_turn(tokenizer.piece(id).value())) {
      info.end_tokens.push_back(id);
    }
  }
  if (chat_template.ok()) {
    if (const auto id = end_of_answer(*chat_template, tokenizer)) info.end_tokens.push_back(*id);
  }
  std::sort(info.end_tokens.begin(), info.end_tokens.end());
  const auto end = std::unique(info.end_tokens.begin(), info.end_tokens.end());
  info.end_tokens.erase(end, info.end_tokens.end());
  return {};
}

Result<ChatTemplate> read_chat_template(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  if (file.find(kKey) == nullptr) return unsupported("the model file has no chat template");
  const Result<std::string_view> source = file.string(kKey);
  if (!source.ok()) return source.status();
  return ChatTemplate::parse(*source);
}

struct NamedArchitecture {
  std::string_view name;
  Decoder (*load)(ModelFileReader& reader, ModelInfo& info);
};
constexpr std::array<NamedArchitecture, 4> kArchitectures = {{{"llama", internal::load_llama},
                                                              {"qwen2", internal::load_qwen2},
                                                              {"qwen3", internal::load_qwen3},
                                                              {"gemma3", internal::load_gemma3}}};

// What a file's keys say of layers that no architecture here has; ok if there is nothing.
Status check_kinds(const ModelFileReader& reader, const GgufFile& file, const std::string& name) {
  const auto refuse = [&](std::string_view what) {
    return unsupported("the model (" + quoted(name) + ") has " + std::string(what) +
                       "; kvik computes dense models whose layers all have attention with keys and "
                       "values per head");
  };
  if (reader.has_key("expert_count")) {
    const Result<int64_t> count = file.integer(name + ".expert_count");
    if (!count.ok()) return count.status();
    if (*count != 0) return refuse("experts (a mixture of experts)");
  }
  if (reader.has_key("attention.kv_lora_rank")) return refuse("multi-head latent attention (MLA)");
  if (reader.has_key("ssm.state_size") || reader.has_key("ssm.conv_kernel") ||
      reader.has_key("wkv.head_size") || reader.has_key("shortconv.l_cache")) {
    return refuse("recurrent layers");
  }
  return {};
}

Result<Decoder> read_decoder(ModelFileReader& reader, const GgufFile& file, ModelInfo& info) {
  if (Status status = check_kinds(reader, file, info.architecture); !status.ok()) return status;
  std::string known;
  for (const NamedArchitecture& each : kArchitectures) {
    known += (known.empty() ? "" : ", ") + std::string(each.name);
    if (each.name != info.architecture) continue;
    Decoder model = each.load(reader, info);
    if (!reader.status().ok()) return reader.status();
    return model;
  }
  return unsupported("the model's architecture is " + quoted(info.architecture) +
                     "; kvik computes " + known);
}

// Reads all weights, shared out over some threads by tensor.
Status check_weights(const std::vector<ModelFileReader::Named>& weights, int num_threads) {
  std::vector<Status> statuses(weights.size());
  Result<ThreadTeam> created = ThreadTeam::create(num_threads);
  if (!created.ok()) return created.status();
  ThreadTeam& team = *created;
  team.run([&](int thread) {
    for (size_t i = static_cast<size_t>(thread); i < weights.size();
         i += static_cast<size_t>(team.size())) {
      statuses[i] = check_finite(weights[i].weight, weights[i].name);
    }
  });
  for (Status& status : statuses) {
    if (!status.ok()) return std::move(status);
  }
  return {};
}

std::optional<int> narrower(std::optional<int> a, std::optional<int> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

// The most blocks of a window cache at one time: what is not given back yet, and a batch.
int64_t window_blocks(const PagedCacheOptions& cache, const ModelCacheOptions& options) {
  const int64_t held = int64_t{*cache.window} + cache.rollback_slack + options.max_batch_tokens;
  const int64_t blocks = (ceil_div(held, cache.block_size) + 2) * options.max_sequences;
  return std::min<int64_t>(blocks, INT32_MAX);
}

void count_weights(const std::vector<ModelFileReader::Named>& weights, ModelInfo& info) {
  for (const ModelFileReader::Named& each : weights) {
    info.num_parameters += each.weight.rows() * each.weight.cols();
    info.weight_bytes += each.weight.num_bytes();
  }
}

}  // namespace

Result<std::shared_ptr<const Model>> Model::load(const std::string& path,
                                                 const ModelOptions& options) {
  Result<GgufFile> file = GgufFile::open(path);
  if (!file.ok()) return file.status();
  return from_gguf(std::move(file).value(), options);
}

Result<std::shared_ptr<const Model>> Model::from_gguf(GgufFile file, const ModelOptions& options) {
  if (options.num_threads < 1) {
    return invalid_argument("num_threads is " + std::to_string(options.num_threads) +
                            "; it must be at least 1");
  }
  if (!file.is_complete()) {
    return invalid_argument(
        "the file is one part of a model in several files; open the first of "
        "them by its path, or give all of them");
  }
  if (Status status = internal::check_general_settings(file); !status.ok()) return status;
  ModelInfo info;
  const Result<std::string_view> architecture = file.string("general.architecture");
  if (!architecture.ok()) return architecture.status();
  const Result<std::string_view> name = file.string_or("general.name", "");
  if (!name.ok()) return name.status();
  info.architecture = *architecture;
  info.name = *name;

  // The number of tokens sets the shape of the embedding.
  const Result<std::vector<std::string_view>> pieces = file.strings("tokenizer.ggml.tokens");
  if (!pieces.ok()) return pieces.status();
  if (pieces->empty() || static_cast<int64_t>(pieces->size()) > internal::kMaxVocab) {
    return Status(StatusCode::corrupt,
                  "the model file lists " + std::to_string(pieces->size()) + " tokens");
  }
  info.vocab_size = static_cast<int>(pieces->size());

  ModelFileReader reader(file, info.architecture);
  Result<Decoder> weights = read_decoder(reader, file, info);
  if (!weights.ok()) return weights.status();
  if (Status status = reader.check_all_read(); !status.ok()) return status;
  if (Status status = reader.check_all_keys_read(info); !status.ok()) return status;
  count_weights(reader.weights(), info);
  if (options.check_weights) {
    Status status = check_weights(reader.weights(), options.num_threads);
    if (!status.ok()) return status;
  }

  Result<Vocabulary> vocabulary = read_vocabulary(file);
  if (!vocabulary.ok()) return vocabulary.status();
  Result<Tokenizer> tokenizer = Tokenizer::create(std::move(vocabulary).value());
  if (!tokenizer.ok()) return tokenizer.status();
  Result<ChatTemplate> chat_template = read_chat_template(file);
  if (Status status = find_end_tokens(file, *tokenizer, chat_template, info); !status.ok()) {
    return status;
  }
  auto parts = std::make_unique<const ModelParts>(
      ModelParts{std::move(file), std::move(info), std::move(tokenizer).value(),
                 std::move(chat_template), std::move(weights).value()});
  return std::shared_ptr<const Model>(new Model(std::move(parts)));
}

Model::Model(std::unique_ptr<const ModelParts> parts) : parts_(std::move(parts)) {}
Model::~Model() = default;

const ModelInfo& Model::info() const { return parts_->info; }
const GgufFile& Model::file() const { return parts_->file; }
const Tokenizer& Model::tokenizer() const { return parts_->tokenizer; }

Result<const ChatTemplate*> Model::chat_template() const {
  if (!parts_->chat_template.ok()) return parts_->chat_template.status();
  return &parts_->chat_template.value();
}

bool Model::is_end_token(TokenId token) const {
  const std::vector<TokenId>& ends = parts_->info.end_tokens;
  return std::binary_search(ends.begin(), ends.end(), token);
}

namespace {

// The formats of all layers of the model, and its key calibration, if any.
Result<KvSpec> protected_spec(const Model& model, const ModelCacheOptions& options) {
  const ModelInfo& info = model.info();
  KvSpec spec = model.kv_spec(options.format);
  for (const int layer : options.protection.wide_layers) {
    if (layer < 0 || layer >= info.num_layers) {
      return invalid_argument("layer " + std::to_string(layer) +
                              " cannot be stored wider; the model has layers 0 to " +
                              std::to_string(info.num_layers - 1));
    }
    spec.layers[static_cast<size_t>(layer)] = options.protection.wide_format;
  }
  if (options.protection.exact_first < 0 || options.protection.exact_recent < 0) {
    return invalid_argument("exact_first and exact_recent count tokens; they cannot be negative");
  }
  if (options.key_calibration != nullptr) {
    if (Status status =
            check(*options.key_calibration, info.num_layers, info.num_kv_heads, info.head_dim_k);
        !status.ok()) {
      return status;
    }
    spec.key_calibration = options.key_calibration;
  }
  return spec;
}

// The same of some of the layers.
KvSpec spec_of(const KvSpec& all, const std::vector<int>& layers) {
  KvSpec spec{all.num_kv_heads, all.head_dim_k, all.head_dim_v, {}};
  KeyCalibration calibration;
  for (const int layer : layers) {
    const auto i = static_cast<size_t>(layer);
    spec.layers.push_back(all.layers[i]);
    if (all.key_calibration != nullptr) {
      calibration.layers.push_back(all.key_calibration->layers[i]);
    }
  }
  if (all.key_calibration != nullptr) {
    calibration.frame = all.key_calibration->frame;
    calibration.first_position = all.key_calibration->first_position;
    spec.key_calibration = std::make_shared<const KeyCalibration>(std::move(calibration));
  }
  return spec;
}

}  // namespace

KvSpec Model::kv_spec(const KvFormat& format) const {
  const ModelInfo& i = info();
  return {i.num_kv_heads, i.head_dim_k, i.head_dim_v,
          std::vector<KvFormat>(static_cast<size_t>(i.num_layers), format)};
}

KeyRope Model::key_rope(int layer) const {
  const internal::Decoder& decoder = parts_->decoder;
  const internal::DecoderLayer& of = decoder.layers[static_cast<size_t>(layer)];
  return {decoder.rope_pairs == internal::RopePairs::neighbours ? KeyPairs::neighbours
                                                                : KeyPairs::halves,
          decoder.ropes[static_cast<size_t>(of.rope_idx)].frequency};
}

Result<std::vector<PagedCacheOptions>> Model::cache_options(
    const ModelCacheOptions& options) const {
  if (options.block_size < kTileTokens || options.block_size % kTileTokens != 0) {
    return invalid_argument("the block size is " + std::to_string(options.block_size) +
                            " tokens; it must be a positive multiple of " +
                            std::to_string(kTileTokens));
  }
  if (options.max_tokens < 1) {
    return invalid_argument("a cache for " + std::to_string(options.max_tokens) +
                            " tokens; it must hold at least 1");
  }
  if (options.max_sequences < 1 || options.max_batch_tokens < 1 ||
      (options.window && *options.window < 1)) {
    return invalid_argument("max_sequences, max_batch_tokens and window must be at least 1");
  }
  if (options.max_sequences == 1) {
    const int reach = options.window.value_or(options.max_tokens);
    if (Status status = internal::check_reach(info(), reach); !status.ok()) return status;
  }
  if (options.window && options.contiguous) {
    return invalid_argument("a contiguous cache gives no blocks back; make it paged for a window");
  }
  Result<KvSpec> all_layers = protected_spec(*this, options);
  if (!all_layers.ok()) return all_layers.status();
  std::vector<PagedCacheOptions> caches;
  for (const LayerGroup& group : info().groups) {
    PagedCacheOptions cache;
    cache.spec = spec_of(*all_layers, group.layers);
    cache.exact_first = options.protection.exact_first;
    cache.exact_recent = options.protection.exact_recent;
    cache.block_size = options.block_size;
    cache.contiguous = options.contiguous;
    // A contiguous cache keeps its rows: block i is page i.
    if (!options.contiguous) cache.window = narrower(group.window, options.window);
    const int64_t all = ceil_div(options.max_tokens, options.block_size);
    const int64_t held = cache.window ? window_blocks(cache, options) : all;
    cache.max_blocks = static_cast<int>(options.window ? held : std::min(all, held));
    caches.push_back(std::move(cache));
  }
  return caches;
}

Result<int64_t> Model::cache_bytes(const ModelCacheOptions& options) const {
  Result<std::vector<PagedCacheOptions>> caches = cache_options(options);
  if (!caches.ok()) return caches.status();
  int64_t bytes = 0;
  const auto add = [&bytes](const KvSpec& spec, int block_size, int64_t blocks) {
    for (int layer = 0; layer < spec.num_layers(); ++layer) {
      for (const int64_t token : {token_bytes_k(spec, layer), token_bytes_v(spec, layer)}) {
        const auto run = checked_product({token, block_size, blocks});
        if (!run || *run > INT64_MAX / 2) return false;
        const auto sum = checked_sum({bytes, internal::most_committed(*run)});
        if (!sum) return false;
        bytes = *sum;
      }
    }
    return true;
  };
  for (const PagedCacheOptions& cache : *caches) {
    KvSpec exact = cache.spec;
    exact.key_calibration = nullptr;
    exact.layers.clear();
    for (const KvFormat& format : cache.spec.layers) {
      if (is_packed(format.k) || is_packed(format.v)) exact.layers.push_back({});
    }
    const int64_t first = ceil_div(cache.exact_first, cache.block_size) * options.max_sequences;
    PagedCacheOptions recent = cache;
    recent.window = std::min(cache.exact_recent, cache.window.value_or(INT32_MAX));
    const int64_t recent_blocks =
        cache.exact_recent > 0 ? std::min<int64_t>(cache.max_blocks, window_blocks(recent, options))
                               : 0;
    if (!add(cache.spec, cache.block_size, cache.max_blocks) ||
        !add(exact, cache.block_size, first + recent_blocks)) {
      return invalid_argument("the cache would be larger than 2^63 bytes");
    }
  }
  return bytes;
}

}  // namespace kvik
