#include "kvik/model/model_runner.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kvik/backend/cpu_backend.h"
#include "kvik/core/check.h"
#include "kvik/core/checked_math.h"
#include "kvik/model/matmul.h"
#include "model/forward_pass.h"
#include "model/layers.h"
#include "model/model_parts.h"

namespace kvik {
namespace {

using internal::Decoder;
using internal::ForwardPass;
using internal::Workspace;

constexpr int kMaxThreads = 1024;
constexpr int kMaxBatchTokens = 1 << 16;
// Rows of logits that exist at one time in log_probabilities(): as many as make reading the output
// matrix cheap.
constexpr int kScoreRows = 32;

Status check_options(const RunnerOptions& options) {
  if (options.num_threads < 1 || options.num_threads > kMaxThreads) {
    return invalid_argument("num_threads is " + std::to_string(options.num_threads) +
                            "; it must lie in 1 to " + std::to_string(kMaxThreads));
  }
  if (options.max_batch_tokens < 1 || options.max_batch_tokens > kMaxBatchTokens) {
    return invalid_argument("max_batch_tokens is " + std::to_string(options.max_batch_tokens) +
                            "; it must lie in 1 to " + std::to_string(kMaxBatchTokens));
  }
  return {};
}

int64_t max_weight_cols(const ModelInfo& info) {
  return std::max({int64_t{info.embedding_dim}, int64_t{info.ffn_dim},
                   int64_t{info.num_heads} * info.head_dim_v});
}

// log(sum_i exp(x[i])) in double, in order of i within 4 lanes.
double log_sum_exp(const float* x, int64_t count) {
  float most = x[0];
  for (int64_t i = 1; i < count; ++i) most = std::max(most, x[i]);
  double lanes[4] = {};
  for (int64_t i = 0; i < count; ++i)
    lanes[i % 4] += std::exp(static_cast<double>(x[i]) - static_cast<double>(most));
  return static_cast<double>(most) + std::log((lanes[0] + lanes[2]) + (lanes[1] + lanes[3]));
}

}  // namespace

class ModelRunner::Impl {
 public:
  Impl(std::shared_ptr<const Model> model, const Decoder& decoder, const RunnerOptions& options,
       std::shared_ptr<ThreadTeam> team, std::shared_ptr<Backend> backend, MatMul matmul,
       Workspace workspace)
      : model_(std::move(model)),
        decoder_(decoder),
        options_(options),
        team_(std::move(team)),
        backend_(std::move(backend)),
        matmul_(std::move(matmul)),
        workspace_(std::move(workspace)),
        score_logits_(static_cast<size_t>(kScoreRows) *
                      static_cast<size_t>(model_->info().vocab_size)),
        windows_(model_->info().groups.size()) {
    tokens_.reserve(static_cast<size_t>(options.max_batch_tokens));
    requests_.reserve(static_cast<size_t>(options.max_batch_tokens));
  }

  Status forward(CacheSet& caches, std::span<const SequenceTokens> steps);
  void logits(int first_row, int num_rows, float* logits);
  void log_probabilities(int first_row, std::span<const TokenId> targets, double* out);

  void set_row_hook(RowHook hook) { on_rows_ = std::move(hook); }
  void set_first_position(int64_t position) { first_position_ = position; }

  const Model& model() const { return *model_; }
  const RunnerOptions& options() const { return options_; }
  const std::shared_ptr<Backend>& backend() const { return backend_; }
  CpuIsa isa() const { return matmul_.isa(); }
  int num_rows() const { return num_rows_; }

 private:
  Status check_caches(CacheSet& caches);
  Status collect(std::span<const SequenceTokens> steps);

  std::shared_ptr<const Model> model_;
  const Decoder& decoder_;  // of the model
  RunnerOptions options_;
  std::shared_ptr<ThreadTeam> team_;
  std::shared_ptr<Backend> backend_;
  MatMul matmul_;
  Workspace workspace_;
  std::vector<float> score_logits_;
  std::vector<TokenId> tokens_;  // of the current step
  std::vector<AppendRequest> requests_;
  std::vector<std::optional<int>> windows_;  // per cache of the current step's set
  RowHook on_rows_;
  int64_t first_position_ = 0;
  int num_rows_ = 0;
};

Status ModelRunner::Impl::check_caches(CacheSet& caches) {
  const ModelInfo& info = model_->info();
  if (caches.num_caches() != static_cast<int>(info.groups.size())) {
    return invalid_argument("the model wants a set of " + std::to_string(info.groups.size()) +
                            " caches, not of " + std::to_string(caches.num_caches()));
  }
  for (size_t i = 0; i < info.groups.size(); ++i) {
    const PagedCache& cache = caches.cache(static_cast<int>(i));
    const KvSpec& spec = cache.spec();
    if (spec.num_layers() != static_cast<int>(info.groups[i].layers.size()) ||
        spec.num_kv_heads != info.num_kv_heads || spec.head_dim_k != info.head_dim_k ||
        spec.head_dim_v != info.head_dim_v) {
      return invalid_argument("cache " + std::to_string(i) +
                              " was made for another model; use Model::cache_options");
    }
    // What a cache has given back, no layer may ask for.
    const std::optional<int> held = cache.window();
    const std::optional<int> wanted = info.groups[i].window;
    windows_[i] = held && wanted ? std::min(*held, *wanted) : held ? held : wanted;
  }
  return {};
}

Status ModelRunner::Impl::collect(std::span<const SequenceTokens> steps) {
  tokens_.clear();
  requests_.clear();
  int64_t num_tokens = 0;
  for (const SequenceTokens& step : steps) num_tokens += static_cast<int64_t>(step.tokens.size());
  if (num_tokens == 0) return invalid_argument("a forward pass needs at least one token");
  if (num_tokens > options_.max_batch_tokens) {
    return invalid_argument("a forward pass of " + std::to_string(num_tokens) +
                            " tokens; the runner was made for " +
                            std::to_string(options_.max_batch_tokens) + " (max_batch_tokens)");
  }
  const int vocab_size = model_->info().vocab_size;
  for (const SequenceTokens& step : steps) {
    for (const TokenId token : step.tokens) {
      if (token < 0 || token >= vocab_size) {
        return invalid_argument("token " + std::to_string(token) +
                                " is outside the vocabulary of " + std::to_string(vocab_size));
      }
      tokens_.push_back(token);
    }
    requests_.push_back({step.sequence, static_cast<int>(step.tokens.size())});
  }
  return {};
}

Status ModelRunner::Impl::forward(CacheSet& caches, std::span<const SequenceTokens> steps) {
  num_rows_ = 0;
  if (Status status = check_caches(caches); !status.ok()) return status;
  if (Status status = collect(steps); !status.ok()) return status;
  Result<SetPlan> plan = caches.reserve(requests_);
  if (!plan.ok()) return plan.status();
  // Where every cache gives older rows back in time, no query reaches further than that.
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (windows_[i] && internal::check_reach(model_->info(), *windows_[i]).ok()) continue;
    const std::span<const int32_t> positions = plan->plan(static_cast<int>(i)).positions();
    const int32_t last = *std::max_element(positions.begin(), positions.end());
    Status status = internal::check_reach(model_->info(), int64_t{last} + 1);
    if (!status.ok()) return status;
  }
  const ForwardPass pass{model_->info(), tokens_, caches,     *plan,    windows_,       *backend_,
                         matmul_,        *team_,  workspace_, on_rows_, first_position_};
  Status status = decoder_.run_layers(pass);
  if (status.ok()) status = caches.commit(std::move(plan).value());
  if (status.ok()) num_rows_ = static_cast<int>(tokens_.size());
  return status;
}

void ModelRunner::Impl::logits(int first_row, int num_rows, float* logits) {
  KVIK_CHECK(first_row >= 0 && num_rows >= 0 && first_row + num_rows <= num_rows_,
             "the last pass left no such rows");
  const int64_t width = model_->info().embedding_dim;
  internal::rms_norm(*team_, workspace_.hidden + first_row * width, num_rows, decoder_.output_norm,
                     decoder_.norm_epsilon, workspace_.normed);
  matmul_.multiply(decoder_.output, workspace_.normed, width, num_rows, logits,
                   decoder_.output.rows());
  if (decoder_.logit_softcap > 0) {
    internal::soft_cap(*team_, logits, num_rows, decoder_.output.rows(), decoder_.logit_softcap);
  }
}

void ModelRunner::Impl::log_probabilities(int first_row, std::span<const TokenId> targets,
                                          double* out) {
  const int64_t vocab_size = model_->info().vocab_size;
  const int count = static_cast<int>(targets.size());
  for (int begin = 0; begin < count; begin += kScoreRows) {
    const int rows = std::min(kScoreRows, count - begin);
    logits(first_row + begin, rows, score_logits_.data());
    team_->run([&](int thread) {
      const Range share = static_share(rows, thread, team_->size());
      for (int64_t i = share.begin; i < share.end; ++i) {
        const float* row = score_logits_.data() + i * vocab_size;
        const TokenId target = targets[static_cast<size_t>(begin + i)];
        out[begin + i] = static_cast<double>(row[target]) - log_sum_exp(row, vocab_size);
      }
    });
  }
}

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(std::shared_ptr<const Model> model,
                                                         const RunnerOptions& options) {
  if (model == nullptr) return invalid_argument("a runner needs a model");
  if (Status status = check_options(options); !status.ok()) return status;
  Result<ThreadTeam> created = ThreadTeam::create(options.num_threads);
  if (!created.ok()) return created.status();
  auto team = std::make_shared<ThreadTeam>(std::move(created).value());
  CpuBackendOptions backend_options;
  backend_options.num_threads = options.num_threads;
  backend_options.isa = options.isa;
  backend_options.pin_threads = options.pin_threads;
  backend_options.team = team;
  Result<std::unique_ptr<Backend>> backend = make_cpu_backend(backend_options);
  if (!backend.ok()) return backend.status();
  const CpuIsa isa = options.isa.value_or(available_cpu_isas(backend_options.features).front());
  Result<MatMul> matmul = MatMul::create(isa, *team, max_weight_cols(model->info()));
  if (!matmul.ok()) return matmul.status();
  Result<Workspace> workspace = Workspace::create(model->info(), options.max_batch_tokens);
  if (!workspace.ok()) return workspace.status();
  const Decoder& decoder = model->parts_->decoder;
  auto impl = std::make_unique<Impl>(std::move(model), decoder, options, std::move(team),
                                     std::move(backend).value(), std::move(matmul).value(),
                                     std::move(workspace).value());
  return std::unique_ptr<ModelRunner>(new ModelRunner(std::move(impl)));
}

ModelRunner::ModelRunner(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModelRunner::~ModelRunner() = default;

const Model& ModelRunner::model() const { return impl_->model(); }
const RunnerOptions& ModelRunner::options() const { return impl_->options(); }
const std::shared_ptr<Backend>& ModelRunner::backend() const { return impl_->backend(); }
CpuIsa ModelRunner::isa() const { return impl_->isa(); }
void ModelRunner::set_row_hook(RowHook hook) { impl_->set_row_hook(std::move(hook)); }
void ModelRunner::set_first_position(int64_t position) {
  KVIK_CHECK(position >= 0, "a negative position");
  impl_->set_first_position(position);
}
int ModelRunner::num_rows() const { return impl_->num_rows(); }

Result<CacheSet> ModelRunner::make_caches(const ModelCacheOptions& model_options) const {
  ModelCacheOptions options = model_options;
  options.max_batch_tokens = impl_->options().max_batch_tokens;
  Result<std::vector<PagedCacheOptions>> caches = model().cache_options(options);
  if (!caches.ok()) return caches.status();
  Result<int64_t> bytes = model().cache_bytes(options);
  if (!bytes.ok()) return bytes.status();
  const int64_t available = available_memory_bytes();
  if (*bytes > available) {
    const Result<int> most = model().largest_context(options, available);
    if (!most.ok()) return most.status();
    return Status(StatusCode::out_of_memory,
                  "a cache for " + std::to_string(options.max_tokens) + " tokens takes " +
                      std::to_string(*bytes) + " bytes and " + std::to_string(available) +
                      " are available; ask for a context of " + std::to_string(*most) +
                      " tokens at most, or a smaller KV format");
  }
  return CacheSet::create(*caches, backend());
}

Status ModelRunner::forward(CacheSet& caches, std::span<const SequenceTokens> steps) {
  return impl_->forward(caches, steps);
}

void ModelRunner::logits(int first_row, int num_rows, std::span<float> logits) {
  KVIK_CHECK(
      static_cast<int64_t>(logits.size()) == int64_t{num_rows} * impl_->model().info().vocab_size,
      "logits must be num_rows * vocab_size long");
  impl_->logits(first_row, num_rows, logits.data());
}

void ModelRunner::log_probabilities(int first_row, std::span<const TokenId> targets,
                                    std::span<double> out) {
  KVIK_CHECK(targets.size() == out.size(), "one result per target");
  impl_->log_probabilities(first_row, targets, out.data());
}

}  // namespace kvik
