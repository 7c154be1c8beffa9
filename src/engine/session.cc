#include "kvik/engine/session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/stop_matcher.h"
#include "kvik/core/checked_math.h"
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
      : tokenizer_(tokenizer),
        skip_special_(params.skip_special),
        decoder_(tokenizer, params.skip_special),
        matcher_(params.stop),
        on_text_(on_text) {}

  Status push(TokenId token) {
    Result<std::string> piece = decoder_.push(token);
    if (!piece.ok()) return piece.status();
    emit(matcher_.push(*piece));
    const Result<TokenType> type = tokenizer_.token_type(token);
    if (!type.ok()) return type.status();
    if (!skip_special_ || (*type != TokenType::control && *type != TokenType::unknown)) return {};
    const Result<std::string_view> spelling = tokenizer_.token_bytes(token);
    if (!spelling.ok()) return spelling.status();
    emit(matcher_.push_hidden(*spelling));
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

  const Tokenizer& tokenizer_;
  bool skip_special_;
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
                 Overflow overflow, Shift shift)
    : runner_(std::move(runner)),
      caches_(std::move(caches)),
      sequence_(caches_.new_sequence()),
      context_(context),
      max_tokens_(overflow == Overflow::stop ? context : kMaxPositions),
      shift_(shift),
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
  const Result<Shift> shift = plan_shift(*caches, options, context);
  if (!shift.ok()) return shift.status();
  return std::unique_ptr<Session>(
      new Session(std::move(runner), std::move(caches).value(), context, options.overflow, *shift));
}

Result<Session::Shift> Session::plan_shift(const CacheSet& caches, const SessionOptions& options,
                                           int context) {
  if (options.overflow != Overflow::shift) {
    if (options.keep == 0) return Shift{};
    return invalid_argument("keep is " + std::to_string(options.keep) +
                            "; only Overflow::shift keeps tokens");
  }
  if (options.keep < 0) return invalid_argument("keep is " + std::to_string(options.keep));
  const Result<int> unit = caches.drop_unit();
  if (!unit.ok()) return Status(unit.status().code(), "shift: " + unit.status().message());
  const int64_t kept = std::max(options.keep, options.kv_protection.exact_first);
  const int64_t begin = round_up(kept, *unit);
  if (begin + *unit > context) {
    return invalid_argument("shift: a context of " + std::to_string(context) +
                            " tokens is too short to keep " + std::to_string(kept) +
                            " and drop whole runs of " + std::to_string(*unit) + "; the least is " +
                            std::to_string(begin + *unit));
  }
  return Shift{static_cast<int>(begin), *unit};
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

// The moment depends on the number of tokens alone, not on how they were fed.
Result<int> Session::make_room() {
  const int batch = runner_->options().max_batch_tokens;
  if (shift_.unit == 0) return batch;
  if (const int cached = sequence_.num_cached(); cached >= context_) {
    // At least one unit is there, and half of n units or a part more rounds up to n at most.
    const int64_t half = ceil_div(cached - shift_.begin, 2);
    const auto count = static_cast<int>(round_up(half, shift_.unit));
    if (Status status = caches_.drop_tokens(sequence_, shift_.begin, count); !status.ok()) {
      return status;
    }
    last_shift_ = static_cast<size_t>(cached) + dropped_.size();
    const auto run = tokens_.begin() + shift_.begin;
    dropped_.insert(dropped_.end(), run, run + count);
    tokens_.erase(run, run + count);
    ++timings_.shifts;
    timings_.dropped_tokens += count;
  }
  return std::min(batch, context_ - sequence_.num_cached());
}

TokenId Session::history_token(size_t i) const {
  const auto begin = static_cast<size_t>(shift_.begin);
  if (i < begin) return tokens_[i];
  if (i - begin < dropped_.size()) return dropped_[i - begin];
  return tokens_[i - dropped_.size()];
}

void Session::forget_dropped() {
  dropped_.clear();
  last_shift_ = 0;
  is_as_fed_ = true;
}

Status Session::compute_pending() {
  if (tokens_.empty() || has_logits_) return {};
  if (static_cast<size_t>(sequence_.num_cached()) == tokens_.size()) {
    // All rows are there, but not what the last one led to. Where a window has given back a row
    // that it needs, everything is computed anew.
    Status status = caches_.truncate(sequence_, sequence_.num_cached() - 1);
    if (status.code() == StatusCode::unsupported) {
      status = caches_.truncate(sequence_, 0);
      if (status.ok()) forget_dropped();
    }
    if (!status.ok()) return status;
    // The row of this token was made before the run was dropped; the new one is not.
    if (history_size() <= last_shift_) is_as_fed_ = false;
  }
  while (static_cast<size_t>(sequence_.num_cached()) < tokens_.size()) {
    if (is_cancelled()) return cancelled();
    const Result<int> room = make_room();
    if (!room.ok()) return room.status();
    const auto done = static_cast<size_t>(sequence_.num_cached());
    const std::span<const TokenId> chunk = std::span<const TokenId>(tokens_).subspan(
        done, std::min(tokens_.size() - done, static_cast<size_t>(*room)));
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
  const int64_t before = sequence_.num_cached() + timings_.dropped_tokens;
  Status status;
  {
    const Stopwatch watch(timings_.prompt_seconds);
    status = compute_pending();
  }
  timings_.prompt_tokens +=
      std::max<int64_t>(0, sequence_.num_cached() + timings_.dropped_tokens - before);
  return status;
}

Result<int> Session::rewind_to(std::span<const TokenId> prompt) {
  const size_t most = prompt.empty() ? 0 : prompt.size() - 1;
  const size_t held = static_cast<size_t>(sequence_.num_cached()) + dropped_.size();
  size_t common = 0;
  while (common < most && common < held && history_token(common) == prompt[common]) ++common;
  // Rows that a shift moved are what this prompt makes only if it shifts at the same place.
  const auto kept = static_cast<size_t>(shift_.begin);
  if (!dropped_.empty() && (common < last_shift_ || !is_as_fed_)) common = std::min(common, kept);
  Status status = truncate(static_cast<int>(common <= kept ? common : common - dropped_.size()));
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
  if (num_tokens <= shift_.begin) {
    forget_dropped();
  } else if (history_size() < last_shift_) {
    is_as_fed_ = false;
  }
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
  const Stopwatch watch(timings_.prompt_seconds);
  size_t count = 0;
  for (size_t begin = 0; begin < tokens.size(); begin += count) {
    const Result<int> room = is_cancelled() ? cancelled() : make_room();
    Status status = room.status();
    if (room.ok()) {
      count = std::min(static_cast<size_t>(*room), tokens.size() - begin);
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
