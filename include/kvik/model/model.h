// A model file loaded for computing: weights, hyperparameters, tokenizer and chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvik/cache/paged_cache.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/format/key_frame.h"
#include "kvik/format/kv_format.h"
#include "kvik/model/chat_template.h"
#include "kvik/model/gguf.h"
#include "kvik/model/tokenizer.h"

namespace kvik {

namespace internal {
struct ModelParts;
}

struct ModelOptions {
  // Refuses a file that holds NaN or infinity in a weight. Reads all of the file once.
  bool check_weights = true;
  // Threads for that; the calling thread included.
  int num_threads = 1;
};

// How the keys of a layer are turned by position: pair i by frequencies[i] radians per token.
// Borrows from the model.
struct KeyRope {
  KeyPairs pairs = KeyPairs::halves;
  std::span<const double> frequencies;
};

// Layers that share a cache, in order.
struct LayerGroup {
  std::vector<int> layers;
  std::optional<int> window = std::nullopt;  // a query at p sees keys p - window + 1 to p
};

struct ModelInfo {
  std::string architecture;  // "llama", "qwen2", "qwen3" or "gemma3"
  std::string name;          // general.name; empty if the file has none
  int num_layers = 0;
  int embedding_dim = 0;
  int ffn_dim = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  int rope_dim = 0;
  int context_length = 0;  // tokens, as trained
  // The file states a window of so many tokens that is not computed: longer sequences are refused.
  std::optional<int> max_context;
  int vocab_size = 0;  // rows of logits and tokens of the tokenizer
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;  // as stored
  bool tied_embeddings = false;
  std::vector<LayerGroup> groups;  // one cache of the set each; every layer in one of them
  // Tokens that end an answer: EOS, and those that the file or their spelling mark as ends of a
  // turn. Ascending.
  std::vector<TokenId> end_tokens;
};

// Rows that a packed cache stores wider than the rest.
struct KvProtection {
  // Layers of the model in this format instead.
  std::vector<int> wide_layers = {};
  KvFormat wide_format = {};
  // Beside packed layers, rows in f16 that are read instead of the packed ones: those of the first
  // positions, and for a query at p those of t > p - exact_recent.
  int exact_first = 0;
  int exact_recent = 0;
};

// How the caches of a model are made.
struct ModelCacheOptions {
  KvFormat format = {};
  KvProtection protection = {};
  // For keys of rotated formats; the layers are those of the model. Null: none.
  std::shared_ptr<const KeyCalibration> key_calibration = nullptr;
  int block_size = 16;   // tokens, a multiple of 16
  int max_tokens = 512;  // over all sequences; rounded up to whole blocks
  // One sequence whose block i is page i: its rows lie one after the other. Layers with a window
  // then keep all rows instead of giving blocks back.
  bool contiguous = false;
  // Every layer sees the newest `window` tokens at most, and a sequence may grow past max_tokens:
  // the blocks of older tokens are given back. Changes results once a sequence is longer.
  std::optional<int> window = std::nullopt;
  // Bounds the room of layers with a window: sequences (forks included) and new tokens of a step.
  int max_sequences = 1;
  int max_batch_tokens = 512;
};

// Immutable after load(): any number of threads may read it, and any number of runners share it.
// Weights stay packed, as views of the mapped file, which must not shrink or change meanwhile.
class KVIK_API Model {
 public:
  // Errors: as GgufFile::open and Tokenizer::create; unsupported (architecture, weight type, rope
  // scaling, a tensor or setting that the architecture's code would ignore), corrupt (a tensor
  // that is missing or of the wrong shape, NaN or infinity, hyperparameters that are missing,
  // absurd or contradict each other). The message names the tensor or key.
  static Result<std::shared_ptr<const Model>> load(const std::string& path,
                                                   const ModelOptions& options = {});
  // The same from a file already opened.
  static Result<std::shared_ptr<const Model>> from_gguf(GgufFile file,
                                                        const ModelOptions& options = {});
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelInfo& info() const;
  const GgufFile& file() const;
  const Tokenizer& tokenizer() const;
  // Errors: unsupported when the file has no template, or one beyond the limits; corrupt when it is
  // not Jinja.
  Result<const ChatTemplate*> chat_template() const;
  bool is_end_token(TokenId token) const;

  // Requires: 0 <= layer < info().num_layers.
  KeyRope key_rope(int layer) const;
  // All that a forward pass reads beside weights and tokens, as it is computed with: "name value"
  // lines, floating-point numbers in hexadecimal. Two models of equal weights and equal settings
  // give equal results.
  std::string settings() const;

  // Shape and format of the model's KV rows, all layers of one format.
  KvSpec kv_spec(const KvFormat& format) const;
  // One entry per cache of the set that ModelRunner::forward() wants. Errors: invalid_argument
  // for a block size, length, protection or key calibration out of range or of another shape.
  Result<std::vector<PagedCacheOptions>> cache_options(const ModelCacheOptions& options) const;
  // The most memory that those caches commit, exact rows included, however they are filled. Errors:
  // as cache_options; invalid_argument when they exceed 2^63.
  Result<int64_t> cache_bytes(const ModelCacheOptions& options) const;
  // The most tokens, options.max_tokens at most, whose caches take no more than `bytes`; 0: not
  // even one block fits. A wider window narrows to the tokens. Errors: as cache_bytes.
  Result<int> largest_context(const ModelCacheOptions& options, int64_t bytes) const;

 private:
  friend class ModelRunner;
  explicit Model(std::unique_ptr<const internal::ModelParts> parts);
  std::unique_ptr<const internal::ModelParts> parts_;
};

}  // namespace kvik
