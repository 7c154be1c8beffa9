#include "kvik/eval/compare.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "eval/divergence.h"
#include "eval/tally.h"
#include "kvik/core/buffer.h"
#include "kvik/core/checked_math.h"
#include "kvik/core/thread_team.h"
#include "model/text_chunks.h"

namespace kvik {
namespace {

using internal::diverge;
using internal::make_reference;
using internal::PositionBuckets;
using internal::PositionScore;
using internal::ReferenceRow;
using internal::RowDivergence;
using internal::Tally;

// A cache under comparison and what was seen of it.
struct Run {
  std::string name;
  RowHook hook;
  CacheSet caches;
  Sequence sequence;
  Tally tally;
  double seconds = 0;
  int64_t num_tokens = 0;
};

Status with_name(const std::string& name, const Status& status) {
  return {status.code(), name + ": " + status.message()};
}

// Room for one chunk.
ModelCacheOptions options_for(const Candidate& candidate, int context) {
  ModelCacheOptions options = candidate.cache;
  options.max_tokens = context;
  options.max_sequences = 1;
  return options;
}

class Comparer {
 public:
  Comparer(ModelRunner& runner, const CompareParams& params, int first_scored, int num_chunks,
           ThreadTeam team)
      : runner_(runner),
        params_(params),
        first_scored_(first_scored),
        num_chunks_(num_chunks),
        team_(std::move(team)),
        vocab_size_(runner.model().info().vocab_size),
        max_rows_(std::min(params.max_rows, runner.options().max_batch_tokens)),
        reference_rows_(static_cast<size_t>(max_rows_)),
        scores_(static_cast<size_t>(max_rows_)) {
    const auto room = static_cast<size_t>(max_rows_) * static_cast<size_t>(vocab_size_);
    reference_logits_.resize(room);
    weights_.resize(room);
    logits_.resize(room);
    runner.set_first_position(params.first_position);
  }
  ~Comparer() {
    runner_.set_row_hook({});
    runner_.set_first_position(0);
  }
  Comparer(const Comparer&) = delete;
  Comparer& operator=(const Comparer&) = delete;

  // The reference is the first one added.
  Status add(const Candidate& candidate);
  Status compare_chunk(int chunk_idx, std::vector<TokenId> chunk);
  Status finish(std::span<const Candidate> candidates, Comparison& comparison) const;

 private:
  Status forward(Run& run, std::span<const TokenId> tokens);
  Status compare_batch(int begin, std::span<const TokenId> tokens,
                       std::span<const TokenId> targets);
  void take_reference(int num_rows);
  void score(Run& run, int begin, std::span<const TokenId> targets);
  const float* row_of(const std::vector<float>& rows, int64_t row) const {
    return rows.data() + row * vocab_size_;
  }

  ModelRunner& runner_;
  const CompareParams& params_;
  const int first_scored_;
  const int num_chunks_;
  ThreadTeam team_;
  const int64_t vocab_size_;
  const int max_rows_;
  std::vector<Run> runs_;
  CompareProgress progress_;
  // Of the current batch.
  std::vector<float> reference_logits_, weights_, logits_;
  std::vector<ReferenceRow> reference_rows_;
  std::vector<PositionScore> scores_;
};

Status Comparer::add(const Candidate& candidate) {
  ModelCacheOptions options = options_for(candidate, params_.context);
  if (options.key_calibration != nullptr && params_.first_position != 0) {
    KeyCalibration calibration = *options.key_calibration;
    calibration.first_position = params_.first_position;
    options.key_calibration = std::make_shared<const KeyCalibration>(std::move(calibration));
  }
  Result<CacheSet> caches = runner_.make_caches(options);
  if (!caches.ok()) return with_name(candidate.name, caches.status());
  Sequence sequence = caches->new_sequence();
  runs_.push_back(
      {candidate.name, candidate.hook, std::move(caches).value(), std::move(sequence),
       Tally(PositionBuckets(first_scored_, params_.context - 1, params_.num_buckets))});
  return {};
}

Status Comparer::forward(Run& run, std::span<const TokenId> tokens) {
  using Clock = std::chrono::steady_clock;
  runner_.set_row_hook(run.hook);
  const Clock::time_point start = Clock::now();
  const SequenceTokens step{&run.sequence, tokens};
  if (Status status = runner_.forward(run.caches, {&step, 1}); !status.ok()) {
    return with_name(run.name, status);
  }
  run.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  run.num_tokens += static_cast<int64_t>(tokens.size());
  progress_.done += static_cast<int64_t>(tokens.size());
  if (params_.on_progress && !params_.on_progress(progress_)) {
    return {StatusCode::cancelled, "stopped by the caller"};
  }
  return {};
}

void Comparer::take_reference(int num_rows) {
  const auto size = static_cast<size_t>(num_rows) * static_cast<size_t>(vocab_size_);
  runner_.logits(0, num_rows, std::span(reference_logits_).first(size));
  team_.run([&](int thread) {
    const Range share = static_share(num_rows, thread, team_.size());
    for (int64_t i = share.begin; i < share.end; ++i) {
      reference_rows_[static_cast<size_t>(i)] = make_reference(
          row_of(reference_logits_, i), vocab_size_, weights_.data() + i * vocab_size_);
    }
  });
}

// Scores the rows of `run` whose logits lie in `logits`.
void Comparer::score(Run& run, int begin, std::span<const TokenId> targets) {
  const auto num_rows = static_cast<int64_t>(targets.size());
  const bool is_reference = &run == &runs_.front();
  const std::vector<float>& logits = is_reference ? reference_logits_ : logits_;
  team_.run([&](int thread) {
    const Range share = static_share(num_rows, thread, team_.size());
    for (int64_t i = share.begin; i < share.end; ++i) {
      const auto idx = static_cast<size_t>(i);
      const ReferenceRow& reference = reference_rows_[idx];
      const float* const row = row_of(logits, i);
      const RowDivergence divergence =
          is_reference ? RowDivergence{0, reference.log_sum_exp(), reference.top}
                       : diverge(reference, row, vocab_size_);
      PositionScore& score = scores_[idx];
      score.kld = divergence.kld;
      score.same_top = divergence.top == reference.top;
      score.log_probability = static_cast<double>(row[targets[idx]]) - divergence.log_sum_exp;
      score.reference_log_probability =
          static_cast<double>(reference.logits[targets[idx]]) - reference.log_sum_exp();
    }
  });
  for (size_t i = 0; i < targets.size(); ++i) {
    run.tally.add(begin + static_cast<int>(i), scores_[i]);
  }
}

Status Comparer::compare_batch(int begin, std::span<const TokenId> tokens,
                               std::span<const TokenId> targets) {
  const auto num_rows = static_cast<int>(tokens.size());
  for (Run& run : runs_) {
    if (Status status = forward(run, tokens); !status.ok()) return status;
    if (&run == &runs_.front()) {
      take_reference(num_rows);
    } else {
      const auto size = static_cast<size_t>(num_rows) * static_cast<size_t>(vocab_size_);
      runner_.logits(0, num_rows, std::span(logits_).first(size));
    }
    score(run, begin, targets);
  }
  return {};
}

Status Comparer::compare_chunk(int chunk_idx, std::vector<TokenId> chunk) {
  progress_.chunk = chunk_idx;
  progress_.num_chunks = num_chunks_;
  // The last token is only predicted.
  const int num_passed = params_.context - 1;
  progress_.total = int64_t{num_passed} * num_chunks_ * static_cast<int64_t>(runs_.size());
  for (Run& run : runs_) {
    if (Status status = run.caches.truncate(run.sequence, 0); !status.ok()) {
      return with_name(run.name, status);
    }
    const int most = runner_.options().max_batch_tokens;
    for (int begin = 0; begin < first_scored_; begin += most) {
      const int count = std::min(most, first_scored_ - begin);
      Status status = forward(run, std::span<const TokenId>(chunk).subspan(
                                       static_cast<size_t>(begin), static_cast<size_t>(count)));
      if (!status.ok()) return status;
    }
  }
  for (int begin = first_scored_; begin < num_passed; begin += max_rows_) {
    const auto count = static_cast<size_t>(std::min(max_rows_, num_passed - begin));
    const auto from = static_cast<size_t>(begin);
    const std::span<const TokenId> tokens = std::span<const TokenId>(chunk).subspan(from, count);
    const std::span<const TokenId> next = std::span<const TokenId>(chunk).subspan(from + 1, count);
    if (Status status = compare_batch(begin, tokens, next); !status.ok()) return status;
  }
  return {};
}

Status Comparer::finish(std::span<const Candidate> candidates, Comparison& comparison) const {
  const Model& model = runner_.model();
  const auto f16_bytes = static_cast<double>(token_bytes(model.kv_spec({})));
  for (size_t i = 0; i < runs_.size(); ++i) {
    const Run& run = runs_[i];
    CandidateResult result;
    result.name = run.name;
    const Result<int64_t> bytes = bytes_per_token(model, candidates[i]);
    if (!bytes.ok()) return with_name(run.name, bytes.status());
    result.bytes_per_token = *bytes;
    result.ratio = static_cast<double>(*bytes) / f16_bytes;
    result.tokens_per_second =
        run.seconds > 0 ? static_cast<double>(run.num_tokens) / run.seconds : 0;
    run.tally.finish(result);
    if (i == 0) {
      comparison.reference = std::move(result);
    } else {
      comparison.candidates.push_back(std::move(result));
    }
  }
  return {};
}

Status check(const CompareParams& params, int first_scored, size_t num_candidates) {
  if (num_candidates == 0) return invalid_argument("there is no format to compare");
  if (params.context < 4 || params.context > 1 << 30) {
    return invalid_argument("chunks of " + std::to_string(params.context) +
                            " tokens; they must have at least 4");
  }
  if (first_scored < 0 || first_scored > params.context - 2) {
    return invalid_argument("the first scored position is " + std::to_string(first_scored) +
                            "; it must lie in 0 to " + std::to_string(params.context - 2));
  }
  if (params.first_position < 0 || params.first_position % 512 != 0) {
    return invalid_argument("the first position is " + std::to_string(params.first_position) +
                            "; it must be a multiple of 512");
  }
  if (params.max_rows < 1 || params.num_buckets < 1 ||
      (params.max_chunks && *params.max_chunks < 1)) {
    return invalid_argument("max_rows, num_buckets and max_chunks must be at least 1");
  }
  return {};
}

// All caches hold a chunk at the same time.
Status check_memory(const ModelRunner& runner, std::span<const Candidate> candidates, int context) {
  int64_t sum = 0;
  for (const Candidate& candidate : candidates) {
    ModelCacheOptions options = options_for(candidate, context);
    options.max_batch_tokens = runner.options().max_batch_tokens;
    const Result<std::vector<PagedCacheOptions>> caches = runner.model().cache_options(options);
    if (!caches.ok()) return with_name(candidate.name, caches.status());
    for (const PagedCacheOptions& cache : *caches) {
      const auto rows =
          checked_product({token_bytes(cache.spec), cache.block_size, cache.max_blocks});
      const auto more = rows ? checked_sum({sum, *rows}) : std::nullopt;
      if (!more) return invalid_argument("the caches would be larger than 2^63 bytes");
      sum = *more;
    }
  }
  const int64_t available = available_memory_bytes();
  if (sum <= available) return {};
  return {StatusCode::out_of_memory,
          "the caches of all formats take " + std::to_string(sum) + " bytes together and " +
              std::to_string(available) +
              " are available; compare fewer formats or a shorter context"};
}

}  // namespace

Result<Comparison> compare_formats(ModelRunner& runner, std::span<const TokenId> tokens,
                                   std::span<const Candidate> candidates,
                                   const CompareParams& params) {
  const int first_scored = params.first_scored.value_or(params.context / 2);
  if (Status status = check(params, first_scored, candidates.size()); !status.ok()) return status;
  const Result<int> num_chunks = internal::num_chunks(tokens, params.context, params.max_chunks);
  if (!num_chunks.ok()) return num_chunks.status();

  std::vector<Candidate> all;
  all.push_back({"f32", {.format = {KvCode::f32, KvCode::f32}}});
  all.insert(all.end(), candidates.begin(), candidates.end());
  if (Status status = check_memory(runner, all, params.context); !status.ok()) return status;
  Result<ThreadTeam> team = ThreadTeam::create(runner.options().num_threads);
  if (!team.ok()) return team.status();
  Comparer comparer(runner, params, first_scored, *num_chunks, std::move(team).value());
  for (const Candidate& each : all) {
    if (Status status = comparer.add(each); !status.ok()) return status;
  }
  const Tokenizer& tokenizer = runner.model().tokenizer();
  for (int i = 0; i < *num_chunks; ++i) {
    Status status =
        comparer.compare_chunk(i, internal::chunk_of(tokens, params.context, i, tokenizer));
    if (!status.ok()) return status;
  }
  Comparison comparison;
  comparison.context = params.context;
  comparison.num_chunks = *num_chunks;
  comparison.first_position = params.first_position;
  comparison.first_scored = first_scored;
  comparison.num_positions = int64_t{*num_chunks} * (params.context - 1 - first_scored);
  if (Status status = comparer.finish(all, comparison); !status.ok()) return status;
  return comparison;
}

}  // namespace kvik
