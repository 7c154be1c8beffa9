// Forward passes of a model over a set of caches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvik/backend/backend.h"
#include "kvik/cache/cache_set.h"
#include "kvik/core/cpu_isa.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/core/tensor_view.h"
#include "kvik/model/model.h"

namespace kvik {

struct RunnerOptions {
  int num_threads = 1;                       // the calling thread included
  std::optional<CpuIsa> isa = std::nullopt;  // none: the best of this processor
  bool pin_threads = false;                  // one processor per thread; for benchmarks
  int max_batch_tokens = 512;                // most new tokens of one forward(), all sequences
};

// New tokens of one sequence, at the positions after those it holds.
struct SequenceTokens {
  Sequence* sequence = nullptr;
  std::span<const TokenId> tokens;
};

// Rows of one layer's new tokens after RoPE, before the cache stores keys and values and before
// attention reads the queries. A hook may change them in place.
struct LayerRows {
  int layer = 0;                       // of the model
  std::span<const int32_t> positions;  // one per new token
  TensorView q;                        // f32 [num_tokens, num_heads, head_dim_k]
  TensorView k;                        // f32 [num_tokens, num_kv_heads, head_dim_k]
  TensorView v;                        // f32 [num_tokens, num_kv_heads, head_dim_v]
};
// Called by the thread that calls forward(), layer after layer. Must not throw.
using RowHook = std::function<void(const LayerRows& rows)>;

// Owns the threads, the back end and the workspace of one stream of passes over a shared model.
// Activations are f32. What is computed for a token depends on the tokens before it and on nothing
// else: not on the batch, its split, the number of threads, the block size or the pages.
// Memory is taken in create(); a pass allocates nothing once the caches have grown.
// Threads: one at a time.
class KVIK_API ModelRunner {
 public:
  // Errors: invalid_argument naming the option; unsupported (instruction set, pinning);
  // out_of_memory.
  static Result<std::unique_ptr<ModelRunner>> create(std::shared_ptr<const Model> model,
                                                     const RunnerOptions& options = {});
  ~ModelRunner();
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  const Model& model() const;
  const RunnerOptions& options() const;
  // For CacheSet::create. It shares the threads of this runner: its caches are stepped by the
  // thread that uses the runner.
  const std::shared_ptr<Backend>& backend() const;
  // Instruction set of the kernels.
  CpuIsa isa() const;

  // A set of caches for this model on this back end, with this runner's max_batch_tokens. Layers
  // see the narrower of their own window and that of their cache. Errors: as Model::cache_options
  // and CacheSet::create; out_of_memory when the rows of max_tokens exceed what the system can
  // give.
  Result<CacheSet> make_caches(const ModelCacheOptions& options) const;

  // One step: reserve, all layers, commit. Afterwards the sequences hold the new tokens, and the
  // logits of each of them can be asked for. Errors, with no sequence changed: invalid_argument
  // for no tokens, more than max_batch_tokens, an id outside the vocabulary, or caches that are not
  // of this model's shape; what CacheSet::reserve and commit return.
  Status forward(CacheSet& caches, std::span<const SequenceTokens> steps);

  // Called for every layer of the passes from now on; an empty one ends that. For calibration and
  // for formats that exist for comparison only.
  void set_row_hook(RowHook hook);

  // Where RoPE counts a sequence's positions from, in the passes from now on; 0 unless set. For
  // measuring what happens far from the start of a context. Caches whose keys lie in frames must
  // say the same (KeyCalibration::first_position). Requires: position >= 0.
  void set_first_position(int64_t position);

  // Rows that the last forward() left: its new tokens, in the order of the steps; 0 after an error.
  int num_rows() const;
  // Logits of rows [first_row, first_row + num_rows), each vocab_size long, one after the other.
  // Requires: the rows exist, logits.size() == num_rows * vocab_size.
  void logits(int first_row, int num_rows, std::span<float> logits);
  // out[i] = natural log of the probability of targets[i] after row first_row + i; the sum of
  // exponentials is taken in double. NaN logits give NaN.
  // Requires: the rows exist, targets and out have the same size, ids inside the vocabulary.
  void log_probabilities(int first_row, std::span<const TokenId> targets, std::span<double> out);

 private:
  class Impl;
  explicit ModelRunner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik
