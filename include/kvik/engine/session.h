// One conversation with a model: its tokens, its cache, and the loop that writes text.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvik/cache/cache_set.h"
#include "kvik/core/export.h"
#include "kvik/core/status.h"
#include "kvik/model/model_runner.h"
#include "kvik/model/sampler.h"

namespace kvik {

// What happens when the context is full.
enum class Overflow : uint8_t {
  stop,    // nothing more fits
  window,  // it goes on: each token sees the newest `context` tokens, older rows are given back.
           // Positions keep counting; nothing is moved or computed again.
  shift,   // it goes on: a run of the oldest tokens after the kept ones is forgotten and the later
           // ones move down, without touching a stored row (CacheSet::drop_tokens). The run is the
           // shortest of whole frames and blocks that is at least half of what is not kept.
};

struct SessionOptions {
  std::optional<int> context = std::nullopt;  // tokens; none: as the model was trained
  Overflow overflow = Overflow::stop;
  int keep = 0;  // tokens at the start that shift never drops; rounded up to CacheSet::drop_unit()
  KvFormat kv_format = {};
  KvProtection kv_protection = {};
  std::shared_ptr<const KeyCalibration> key_calibration = nullptr;  // layers of the model
  int block_size = 16;
  bool contiguous = false;
};

struct GenerateParams {
  SamplerParams sampler = {.temperature = 0.0F};
  std::optional<int> max_tokens = std::nullopt;  // none: until something else stops it
  // Texts to stop before, none of them empty; one that spells a control token out stops there, also
  // where the token itself is not shown.
  std::vector<std::string> stop = {};
  bool ignore_end_tokens = false;
  bool skip_special = true;  // control tokens give no text
};

enum class StopReason : uint8_t {
  end_token,     // the model ended its answer
  stop_string,   // one of GenerateParams::stop appeared
  max_tokens,    //
  context_full,  // no room for another token
  cancelled,     // the callback or the cancel flag said so
};

// "end_token", ...
KVIK_API std::string_view stop_reason_name(StopReason reason);

struct Generated {
  std::vector<TokenId> ids;  // an end token included
  std::string text;          // valid UTF-8; without the stop string and what follows it
  StopReason reason = StopReason::max_tokens;
};

// Sums since the session was made or reset_timings().
struct SessionTimings {
  int64_t prompt_tokens = 0;
  double prompt_seconds = 0;
  int64_t generated_tokens = 0;
  double generation_seconds = 0;  // sampling and text included
  int64_t reused_tokens = 0;      // of prompts given to rewind_to(), found in the cache
  int64_t shifts = 0;             // runs that Overflow::shift dropped
  int64_t dropped_tokens = 0;     // their tokens

  double prompt_tokens_per_second() const {
    return prompt_seconds > 0 ? static_cast<double>(prompt_tokens) / prompt_seconds : 0;
  }
  double generated_tokens_per_second() const {
    return generation_seconds > 0 ? static_cast<double>(generated_tokens) / generation_seconds : 0;
  }
};

// Text as it comes: valid UTF-8, never empty, never part of a character. False stops. Must not
// throw.
using TextCallback = std::function<bool(std::string_view text)>;

// Threads: one at a time, and never while another thread uses the same runner. The cancel flag may
// be set by any thread or signal handler.
class KVIK_API Session {
 public:
  // Errors: invalid_argument naming the option; out_of_memory when the context does not fit;
  // unsupported when the cache cannot shift (CacheSet::drop_unit).
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<ModelRunner> runner,
                                                 const SessionOptions& options = {});

  const ModelRunner& runner() const { return *runner_; }
  int context() const { return context_; }
  // All tokens fed and generated, without those that shift dropped. The last one generated is not
  // in the cache yet.
  std::span<const TokenId> tokens() const { return tokens_; }
  int num_cached() const { return sequence_.num_cached(); }
  // Tokens that shift never drops, exact first rows among them; 0 for other overflows.
  int kept() const { return shift_.begin; }
  // One entry per cache of the model.
  std::vector<CacheStats> cache_stats();

  // Looked at between the passes of feed(), generate() and score(). Null: none.
  void set_cancel_flag(const std::atomic<bool>* cancel) { cancel_ = cancel; }

  // Appends tokens and computes all that is not in the cache yet, in passes of the runner's batch.
  // Errors: invalid_argument when an id is outside the vocabulary or the context is too short for
  // all of them (nothing changed, both numbers named); cancelled (the tokens so far computed stay).
  Status feed(std::span<const TokenId> tokens);

  // Forgets the tokens after the longest common prefix with `prompt` (at most prompt.size() - 1, so
  // that the last one is computed) and returns its length; 0, and everything is forgotten, when
  // rows that the shorter text would see have left a window. feed(prompt.subspan(that)) completes
  // the prompt. Tokens that were not computed yet count only up to what the cache holds. Tokens
  // that shift dropped count too: a prompt that goes on where the session is finds all of it, and
  // one that leaves it before the last shift finds the kept tokens. The rows are those that
  // feeding the whole prompt to a new session would make.
  Result<int> rewind_to(std::span<const TokenId> prompt);
  // Keeps the first num_tokens of tokens(). Errors: invalid_argument unless 0 <= num_tokens <=
  // size.
  Status truncate(int num_tokens);

  // Logits after the last token of tokens(); empty unless all of them are computed and at least
  // one is. Valid until the next call that is not const.
  std::span<const float> next_logits() const;

  // Writes until a reason to stop. The same tokens, parameters and seed give the same answer,
  // whatever came before. `on_text` may be empty. An error of the callback or a full context is a
  // reason, not an error. Errors: invalid_argument for parameters or when no token was fed; what a
  // pass returns. Text and ids so far are lost with an error, tokens() is not.
  Result<Generated> generate(const GenerateParams& params, const TextCallback& on_text = {});

  // log p(tokens[i + 1] | tokens[0 .. i]), natural log, for all i: one fewer than tokens. Forgets
  // what the session held; afterwards it holds `tokens`. Errors: as feed().
  Result<std::vector<double>> score(std::span<const TokenId> tokens);

  const SessionTimings& timings() const { return timings_; }
  void reset_timings() { timings_ = {}; }

 private:
  // How Overflow::shift goes; unit 0: the session does not shift.
  struct Shift {
    int begin = 0;
    int unit = 0;
  };
  static Result<Shift> plan_shift(const CacheSet& caches, const SessionOptions& options,
                                  int context);

  Session(std::shared_ptr<ModelRunner> runner, CacheSet caches, int context, Overflow overflow,
          Shift shift);

  Status check_room(std::span<const TokenId> tokens) const;
  Status compute_pending();
  // Shifts if the cache holds the context. Afterwards the next pass may take this many tokens.
  Result<int> make_room();
  size_t history_size() const { return tokens_.size() + dropped_.size(); }
  TokenId history_token(size_t i) const;
  void forget_dropped();
  bool is_cancelled() const { return cancel_ != nullptr && cancel_->load(); }

  std::shared_ptr<ModelRunner> runner_;
  CacheSet caches_;
  Sequence sequence_;
  int context_;
  int max_tokens_;  // the context, or what positions can count
  Shift shift_;
  std::vector<TokenId> tokens_;  // the first sequence_.num_cached() of them are in the cache
  // The history of tokens_: shift_.begin of them, then dropped_, then the rest. What the cache
  // holds is what the history makes of an empty one, unless is_as_fed_ is false: then only the kept
  // tokens are known to be.
  std::vector<TokenId> dropped_;
  size_t last_shift_ = 0;  // size of the history when the last run was dropped
  bool is_as_fed_ = true;
  std::vector<float> logits_;
  bool has_logits_ = false;
  const std::atomic<bool>* cancel_ = nullptr;
  SessionTimings timings_;
};

}  // namespace kvik
