#include "kvik/engine/session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/stop_matcher.h"
#include "kvik/model/stream_decoder.h"

namespace kvik {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

constexpr int kMaxPositions = 1 << 30;

Status cancelled() { return {StatusCode::cancelled, "stopped by the caller"}; }

// Hands text on, as it becomes certain, to the answer and the callback.
class TextOutput {
 public:
  TextOutput(const Tokenizer& tokenizer, const GenerateParams& params, const TextCallback& on_text)
      : decoder_(tokenizer, params.skip_special), matcher_(params.stop), on_text_(on_text) {}

  Status push(TokenId token) {
    Result<std::string> piece = decoder_.push(token);
    if (!piece.ok()) return piece.status();
    emit(matcher_.push(*piece));
    return {};
  }
  void finish() {
    emit(matcher_.push(decoder_.flush()));
    emit(matcher_.flush());
  }
  bool is_stopped() const { return matcher_.is_stopped(); }
  bool is_refused() const { return is_refused_; }
  std::string take() { return std::move(text_); }

 private:
  void emit(const std::string& text) {
    if (text.empty()) return;
    text_ += text;
    if (!is_refused_ && on_text_ && !on_text_(text)) is_refused_ = true;
  }

  StreamDecoder decoder_;
  internal::StopMatcher matcher_;
  const TextCallback& on_text_;
  std::string text_;
  bool is_refused_ = false;
};

Status check_params(const GenerateParams& params) {
  if (params.max_tokens && *params.max_tokens < 0) {
    return invalid_argument("max_tokens is " + std::to_string(*params.max_tokens));
  }
  for (const std::string& stop : params.stop) {
    if (stop.empty()) return invalid_argument("a stop string is empty; it would stop everything");
  }
  return {};
}

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::end_token:
      return "end_token";
    case StopReason::stop_string:
      return "stop_string";
    case StopReason::max_tokens:
      return "max_tokens";
    case StopReason::context_full:
      return "context_full";
    case StopReason::cancelled:
      return "cancelled";
  }
  return "unknown";
}

Session::Session(std::shared_ptr<ModelRunner> runner, CacheSet caches, int context,
                 Overflow overflow)
    : runner_(std::move(runner)),
      caches_(std::move(caches)),
      sequence_(caches_.new_sequence()),
      context_(context),
      max_tokens_(overflow == Overflow::window ? kMaxPositions : context),
      logits_(static_cast<size_t>(runner_->model().info().vocab_size)) {}

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<ModelRunner> runner,
                                                 const SessionOptions& options) {
  if (runner == nullptr) return invalid_argument("a session needs a runner");
  const int context = options.context.value_or(runner->model().info().context_length);
  if (context < 1) {
    return invalid_argument("a context of " + std::to_string(context) +
                            " tokens; it must hold at least 1");
  }
  ModelCacheOptions cache_options = {.format = options.kv_format,
                                     .protection = options.kv_protection,
                                     .key_calibration = options.key_calibration,
                                     .block_size = options.block_size,
                                     .max_tokens = context,
                                     .contiguous = options.contiguous};
  if (options.overflow == Overflow::window) cache_options.window = context;
  Result<CacheSet> caches = runner->make_caches(cache_options);
  if (!caches.ok()) return caches.status();
  return std::unique_ptr<Session>(
      new Session(std::move(runner), std::move(caches).value(), context, options.overflow));
}

std::vector<CacheStats> Session::cache_stats() {
  std::vector<CacheStats> stats;
  for (int i = 0; i < caches_.num_caches(); ++i) stats.push_back(caches_.stats(i));
  return stats;
}

Status Session::check_room(std::span<const TokenId> tokens) const {
  const int vocab_size = runner_->model().info().vocab_size;
  for (const TokenId token : tokens) {
    if (token < 0 || token >= vocab_size) {
      return invalid_argument("token " + std::to_string(token) + " is outside the vocabulary of " +
                              std::to_string(vocab_size));
    }
  }
  const size_t needed = tokens_.size() + tokens.size();
  if (needed <= static_cast<size_t>(max_tokens_)) return {};
  return invalid_argument("the text takes " + std::to_string(needed) +
                          " tokens and the context holds " + std::to_string(max_tokens_) +
                          "; shorten it or ask for a larger context");
}

Status Session::compute_pending() {
  if (tokens_.empty() || has_logits_) return {};
  const auto size = static_cast<int>(tokens_.size());
  if (sequence_.num_cached() == size) {
    // All rows are there, but not what the last one led to. Where a window has given back a row
    // that it needs, everything is computed anew.
    Status status = caches_.truncate(sequence_, size - 1);
    if (status.code() == StatusCode::unsupported) status = caches_.truncate(sequence_, 0);
    if (!status.ok()) return status;
  }
  const int batch = runner_->options().max_batch_tokens;
  while (sequence_.num_cached() < size) {
    if (is_cancelled()) return cancelled();
    const int done = sequence_.num_cached();
    const std::span<const TokenId> chunk = std::span<const TokenId>(tokens_).subspan(
        static_cast<size_t>(done), static_cast<size_t>(std::min(size - done, batch)));
    const SequenceTokens step{&sequence_, chunk};
    if (Status status = runner_->forward(caches_, {&step, 1}); !status.ok()) return status;
  }
  runner_->logits(runner_->num_rows() - 1, 1, logits_);
  has_logits_ = true;
  return {};
}

Status Session::feed(std::span<const TokenId> tokens) {
  if (Status status = check_room(tokens); !status.ok()) return status;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (!tokens.empty()) has_logits_ = false;
  const int before = sequence_.num_cached();
  Status status;
  {
    const Stopwatch watch(timings_.prompt_seconds);
    status = compute_pending();
  }
  timings_.prompt_tokens += std::max(0, sequence_.num_cached() - before);
  return status;
}

Result<int> Session::rewind_to(std::span<const TokenId> prompt) {
  const size_t most = prompt.empty() ? 0 : prompt.size() - 1;
  const auto held = static_cast<size_t>(sequence_.num_cached());
  size_t common = 0;
  while (common < most && common < held && tokens_[common] == prompt[common]) ++common;
  Status status = truncate(static_cast<int>(common));
  if (status.code() == StatusCode::unsupported) {
    common = 0;
    status = truncate(0);
  }
  if (!status.ok()) return status;
  timings_.reused_tokens += static_cast<int64_t>(common);
  return static_cast<int>(common);
}

Status Session::truncate(int num_tokens) {
  if (num_tokens < 0 || static_cast<size_t>(num_tokens) > tokens_.size()) {
    return invalid_argument("the session holds " + std::to_string(tokens_.size()) +
                            " tokens; it cannot keep " + std::to_string(num_tokens));
  }
  if (static_cast<size_t>(num_tokens) == tokens_.size()) return {};
  if (num_tokens < sequence_.num_cached()) {
    if (Status status = caches_.truncate(sequence_, num_tokens); !status.ok()) return status;
  }
  tokens_.resize(static_cast<size_t>(num_tokens));
  has_logits_ = false;
  return {};
}

std::span<const float> Session::next_logits() const {
  return has_logits_ ? std::span<const float>(logits_) : std::span<const float>();
}

Result<Generated> Session::generate(const GenerateParams& params, const TextCallback& on_text) {
  if (Status status = check_params(params); !status.ok()) return status;
  if (tokens_.empty()) return invalid_argument("the prompt is empty; feed at least one token");
  if (Status status = feed({}); !status.ok()) {
    if (status.code() != StatusCode::cancelled) return status;
    return Generated{{}, {}, StopReason::cancelled};
  }
  const Model& model = runner_->model();
  Result<Sampler> sampler = Sampler::create(params.sampler, model.info().vocab_size);
  if (!sampler.ok()) return sampler.status();
  for (const TokenId token : tokens_) {
    if (Status status = sampler->accept(token); !status.ok()) return status;
  }

  const Stopwatch watch(timings_.generation_seconds);
  TextOutput output(model.tokenizer(), params, on_text);
  Generated generated;
  const auto reason_to_stop = [&]() -> std::optional<StopReason> {
    if (output.is_stopped()) return StopReason::stop_string;
    if (output.is_refused() || is_cancelled()) return StopReason::cancelled;
    if (params.max_tokens && generated.ids.size() >= static_cast<size_t>(*params.max_tokens)) {
      return StopReason::max_tokens;
    }
    if (tokens_.size() >= static_cast<size_t>(max_tokens_)) return StopReason::context_full;
    return std::nullopt;
  };
  std::optional<StopReason> reason = reason_to_stop();
  while (!reason) {
    // The token sampled last is computed only when another one is wanted.
    if (Status status = compute_pending(); !status.ok()) return status;
    const Result<TokenId> token = sampler->sample(logits_);
    if (!token.ok()) return token.status();
    if (Status status = sampler->accept(*token); !status.ok()) return status;
    tokens_.push_back(*token);
    has_logits_ = false;
    generated.ids.push_back(*token);
    ++timings_.generated_tokens;
    if (!params.ignore_end_tokens && model.is_end_token(*token)) {
      reason = StopReason::end_token;
      break;
    }
    if (Status status = output.push(*token); !status.ok()) return status;
    reason = reason_to_stop();
  }
  output.finish();
  generated.reason = output.is_stopped() ? StopReason::stop_string : *reason;
  generated.text = output.take();
  return generated;
}

Result<std::vector<double>> Session::score(std::span<const TokenId> tokens) {
  if (Status status = truncate(0); !status.ok()) return status;
  if (Status status = check_room(tokens); !status.ok()) return status;
  tokens_.assign(tokens.begin(), tokens.end());
  std::vector<double> scores(tokens.empty() ? 0 : tokens.size() - 1);
  const auto batch = static_cast<size_t>(runner_->options().max_batch_tokens);
  const Stopwatch watch(timings_.prompt_seconds);
  for (size_t begin = 0; begin < tokens.size(); begin += batch) {
    const size_t count = std::min(batch, tokens.size() - begin);
    Status status = is_cancelled() ? cancelled() : Status();
    if (status.ok()) {
      const SequenceTokens step{&sequence_, tokens.subspan(begin, count)};
      status = runner_->forward(caches_, {&step, 1});
    }
    if (!status.ok()) {
      tokens_.resize(static_cast<size_t>(sequence_.num_cached()));
      return status;
    }
    timings_.prompt_tokens += static_cast<int64_t>(count);
    const size_t targets = std::min(count, tokens.size() - begin - 1);
    runner_->log_probabilities(0, tokens.subspan(begin + 1, targets),
                               std::span(scores).subspan(begin, targets));
  }
  return scores;
}

}  // namespace kvik
