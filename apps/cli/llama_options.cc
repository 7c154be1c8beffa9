#include "llama_options.h"

#include <algorithm>
#include <array>

#include "cli.h"
#include "numbers.h"

namespace kvik::cli {
namespace {

using Takes = LlamaOption::Takes;
using Effect = LlamaOption::Effect;

constexpr Takes kNothing = Takes::nothing, kValue = Takes::value, kMaybe = Takes::maybe;
constexpr Effect kServe = Effect::serve, kIdle = Effect::idle, kRefuse = Effect::refuse;

// Reasons that several share.
constexpr std::string_view kNoDownload = "Kvik downloads no models; give a file with -m";
constexpr std::string_view kNoGpu = "there is no GPU back end yet; processors compute all layers";
constexpr std::string_view kNoSplit = "it says how GPUs share the work, and none is used";
constexpr std::string_view kNoSampler = "there is no such sampler";
constexpr std::string_view kNoGrammar = "answers cannot be held to a grammar or schema yet";
constexpr std::string_view kNoRope = "RoPE is that of the model file";
constexpr std::string_view kNoAdapter = "adapters and control vectors are not supported";
constexpr std::string_view kNoMedia = "models read text only";
constexpr std::string_view kNoDraft = "there is no speculative decoding yet";
constexpr std::string_view kNoServer = "there is no server yet";
constexpr std::string_view kNoEmbeddings = "embeddings are not computed";
constexpr std::string_view kScheduling = "the system places the threads; see taskset and numactl";
constexpr std::string_view kLogging = "there is no log; messages go to standard error";
constexpr std::string_view kTemplateWraps = "what stands around a message is up to the template";
constexpr std::string_view kNoPromptFile = "prompts cannot be kept in a file yet";
constexpr std::string_view kNoTask = "kvik eval and kvik perplexity are the measures there are";
constexpr std::string_view kMapped = "weights are always mapped from the file";
constexpr std::string_view kOneSequence = "a command computes one sequence";
constexpr std::string_view kVerbatim =
    "the text is taken as it is; in the shell, $'...' writes line breaks";

constexpr LlamaOption kOptions[] = {
    // The same under another name.
    {"-ctk", kValue, kServe, "--cache-type-k"},
    {"-ctv", kValue, kServe, "--cache-type-v"},
    {"--n-predict", kValue, kServe, "--predict"},
    {"--temperature", kValue, kServe, "--temp"},
    {"-sys", kValue, kServe, "--system-prompt"},
    {"-r --reverse-prompt", kValue, kServe, "--stop"},
    {"--parse-special", kNothing, kServe, "--special"},
    {"--show-timings", kNothing, kServe, "--perf"},
    {"--context-shift", kNothing, kServe, "--overflow shift"},
    {"--no-context-shift", kNothing, kServe, "--overflow stop"},
    {"--stdin", kNothing, kServe, "--file -"},
    {"-st --single-turn", kNothing, Effect::single_turn, "--chat"},
    {"-cnv --conversation -i --interactive -if --interactive-first", kNothing, Effect::conversation,
     ""},
    {"-no-cnv --no-conversation", kNothing, Effect::completion, ""},
    // Where the model comes from.
    {"-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo", kValue,
     kRefuse, kNoDownload},
    {"--offline", kNothing, kIdle, "nothing is ever downloaded"},
    {"-cl --cache-list", kNothing, kRefuse, kNoDownload},
    {"-lm --load-mode -mmp --mmap-mode", kValue, kIdle, kMapped},
    {"--mlock", kNothing, kIdle, "the system decides which pages of the weights stay in memory"},
    {"--mmap --no-mmap -dio --direct-io -ndio --no-direct-io", kNothing, kIdle, kMapped},
    {"--check-tensors", kNothing, kIdle, "weights are always looked at"},
    {"--override-kv", kValue, kRefuse, "the model file says what the model is"},
    {"--lora --lora-scaled --control-vector --control-vector-scaled", kValue, kRefuse, kNoAdapter},
    {"--lora-init-without-apply", kNothing, kRefuse, kNoAdapter},
    // Where it is computed.
    {"-fa --flash-attn", kMaybe, kIdle, "attention is always computed in one pass",
     "on auto 1 true enabled yes"},
    {"-ngl --gpu-layers --n-gpu-layers", kValue, kIdle, kNoGpu, "0 auto"},
    {"-dev --device", kValue, kIdle, kNoGpu, "none cpu CPU auto"},
    {"--list-devices", kNothing, kRefuse, "kvik doctor shows what this machine offers"},
    {"-sm --split-mode -ts --tensor-split -mg --main-gpu", kValue, kIdle, kNoSplit},
    {"-kvo --kv-offload -nkvo --no-kv-offload -cmoe --cpu-moe --op-offload --no-op-offload "
     "--no-host -fit --fit",
     kMaybe, kIdle, "everything lies in the memory of the processors"},
    {"-nopo", kValue, kIdle, "everything lies in the memory of the processors"},
    {"-ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -ot --override-tensor -fitt --fit-target -fitc "
     "--fit-ctx",
     kValue, kIdle, "everything lies in the memory of the processors"},
    {"--rpc -rpc", kValue, kRefuse, "there are no other machines to compute on"},
    {"-ub --ubatch-size", kValue, kIdle, "-b alone says how many tokens are computed at once"},
    {"-tb --threads-batch", kValue, kIdle, "-t counts for prompts too"},
    {"-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb "
     "--cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch --numa",
     kValue, kIdle, kScheduling},
    {"--repack -nr --no-repack", kNothing, kIdle, "weights are computed with as they are packed"},
    {"--warmup --no-warmup", kNothing, kIdle, "a run does not warm up"},
    // The cache.
    {"-np --parallel -ns --sequences", kValue, kIdle, kOneSequence, "1"},
    {"-cb --cont-batching -nocb --no-cont-batching -kvu --kv-unified -no-kvu --no-kv-unified",
     kNothing, kIdle, kOneSequence},
    {"-dt --defrag-thold", kValue, kIdle, "blocks of the cache never need to be moved"},
    {"--swa-full", kNothing, kIdle, "a cache with a window goes back as far as its blocks reach"},
    {"-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -cram --cache-ram",
     kValue, kIdle, "only a conversation's own cache is used again"},
    {"--cache-idle-slots --no-cache-idle-slots", kNothing, kIdle, kOneSequence},
    {"--cache-reuse", kValue, kIdle, "only a common beginning is used again", "0"},
    {"--prompt-cache", kValue, kRefuse, kNoPromptFile},
    {"--prompt-cache-all --prompt-cache-ro", kNothing, kRefuse, kNoPromptFile},
    {"-gan --grp-attn-n", kValue, kIdle, "there is no grouped attention", "1"},
    {"-gaw --grp-attn-w", kValue, kRefuse, "there is no grouped attention"},
    {"--attention", kValue, kIdle, "attention is that of the model", "causal"},
    {"--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
     "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast",
     kValue, kRefuse, kNoRope},
    // Prompts and chats.
    {"-e --escape", kNothing, kRefuse, kVerbatim},
    {"--no-escape", kNothing, kIdle, "the text is always taken as it is"},
    {"-bf --binary-file --in-file", kValue, kRefuse, "give one text in UTF-8 with -f"},
    {"-sysf --system-prompt-file", kValue, kRefuse,
     "give the text with --system-prompt \"$(cat FILE)\""},
    {"--in-prefix --in-suffix", kValue, kRefuse, kTemplateWraps},
    {"--in-prefix-bos", kNothing, kRefuse, kTemplateWraps},
    {"-mli --multiline-input", kNothing, kRefuse, "each line is a turn; give longer ones with -f"},
    {"-sp", kNothing, kRefuse,
     "control tokens of an answer give no text; kvik's --special reads them in the prompt"},
    {"--no-parse-special", kNothing, kIdle, "that is so without --special"},
    {"--no-bos", kNothing, kRefuse, "the model file says whether a text begins with BOS"},
    {"--ids", kNothing, kRefuse, "-o json prints the ids alone"},
    {"--show-count", kNothing, kRefuse, "count the ids of -o json"},
    {"--jinja", kNothing, kIdle, "the template of the model is always run"},
    {"--no-jinja", kNothing, kRefuse, "chats are written by a Jinja template"},
    {"--chat-template", kValue, kRefuse, "name the template's file with --chat-template-file FILE"},
    {"--chat-template-kwargs", kValue, kRefuse, "say each with --template-var NAME=JSON"},
    {"--skip-chat-parsing --no-skip-chat-parsing", kNothing, kIdle, "answers are not parsed"},
    {"--prefill-assistant --no-prefill-assistant", kNothing, kRefuse,
     "an answer begins where the template lets it"},
    {"--reasoning-format -rea --reasoning --reasoning-effort --reasoning-budget "
     "--reasoning-budget-message",
     kValue, kRefuse,
     "whether a model thinks is up to its template: --template-var enable_thinking=false"},
    {"--reasoning-preserve --no-reasoning-preserve", kNothing, kRefuse,
     "whether a model thinks is up to its template: --template-var enable_thinking=false"},
    // The draw.
    {"--samplers --sampler-seq --sampling-seq", kValue, kRefuse, "the order of samplers is fixed"},
    {"--mirostat --xtc-probability --dry-multiplier --dynatemp-range --presence-penalty "
     "--frequency-penalty",
     kValue, kIdle, kNoSampler, "0"},
    {"--typical --typical-p", kValue, kIdle, kNoSampler, "1"},
    {"--top-nsigma --top-n-sigma --adaptive-target", kValue, kIdle, kNoSampler, "-1"},
    {"--mirostat-lr --mirostat-ent --xtc-threshold --dry-base --dry-allowed-length "
     "--dry-penalty-last-n --dry-sequence-breaker --dynatemp-exp --adaptive-decay",
     kValue, kRefuse, kNoSampler},
    {"-l --logit-bias", kValue, kRefuse, "logits cannot be shifted by an option"},
    {"--grammar --grammar-file -j --json-schema -jf --json-schema-file", kValue, kRefuse,
     kNoGrammar},
    {"-bs --backend-sampling", kNothing, kIdle, "drawing is always done by the processor"},
    // What is printed.
    {"-co --color", kMaybe, kIdle, "colour is used on terminals unless NO_COLOR is set"},
    {"--log-colors", kValue, kIdle, "colour is used on terminals unless NO_COLOR is set"},
    {"-lv --verbosity --log-verbosity --log-file", kValue, kIdle, kLogging},
    {"-v --verbose --log-verbose --log-disable --log-prefix --no-log-prefix --log-timestamps "
     "--no-log-timestamps --log-jsonl --no-log-jsonl --verbose-prompt --progress",
     kNothing, kIdle, kLogging},
    {"--display-prompt --no-display-prompt", kNothing, kIdle, "the prompt is never repeated"},
    {"--no-perf --no-show-timings", kNothing, kIdle, "speeds are printed with --perf only"},
    {"--simple-io", kNothing, kIdle, "input is always read line by line"},
    {"-ptc --print-token-count", kValue, kRefuse, "--perf says how many tokens there were"},
    {"--delay", kValue, kRefuse, "tests follow each other at once"},
    {"-oe --output-err", kValue, kRefuse, "results go to standard output"},
    {"-pg", kValue, kRefuse, "give -p and -n, which are measured apart"},
    {"-embd", kValue, kIdle, kNoEmbeddings, "0"},
    // Other programs.
    {"--ppl-stride --ppl-output-type", kValue, kIdle, "chunks follow each other", "0"},
    {"--hellaswag --winogrande --multiple-choice", kNothing, kRefuse, kNoTask},
    {"--hellaswag-tasks --winogrande-tasks --multiple-choice-tasks", kValue, kRefuse, kNoTask},
    {"--kl-divergence", kNothing, kRefuse, "kvik eval measures it, in one pass"},
    {"--save-all-logits --kl-divergence-base --save-logits", kMaybe, kRefuse,
     "kvik eval compares in one pass, without a file of logits"},
    {"--embedding --embeddings --rerank --reranking", kNothing, kRefuse, kNoEmbeddings},
    {"--pooling --embd-normalize --embd-output-format --embd-separator", kValue, kRefuse,
     kNoEmbeddings},
    {"-mm --mmproj -mmu --mmproj-url --image --audio --video", kValue, kRefuse, kNoMedia},
    {"-md --model-draft -hfd --hf-repo-draft --draft --draft-n --draft-max --draft-min "
     "--draft-n-min --draft-p-min --draft-p-split -ctkd --cache-type-k-draft -ctvd "
     "--cache-type-v-draft -ngld --gpu-layers-draft --n-gpu-layers-draft -devd --device-draft "
     "-td --threads-draft -tbd --threads-batch-draft --spec-type --spec-draft-model "
     "--spec-draft-n-max --spec-draft-n-min -lcs --lookup-cache-static -lcd "
     "--lookup-cache-dynamic",
     kValue, kRefuse, kNoDraft},
    {"--host --port -a --alias --api-key --api-key-file -to --timeout --threads-http "
     "--slot-save-path --path",
     kValue, kRefuse, kNoServer},
    {"--metrics --slots --no-slots --props --no-webui", kNothing, kRefuse, kNoServer},
};

// Calls `see` with each word of a list.
template <typename See>
bool any_word(std::string_view list, See see) {
  while (!list.empty()) {
    const size_t blank = list.find(' ');
    if (see(list.substr(0, blank))) return true;
    if (blank == list.npos) return false;
    list.remove_prefix(blank + 1);
  }
  return false;
}

bool is_one_of(std::string_view list, std::string_view wanted) {
  return any_word(list, [&](std::string_view word) { return word == wanted; });
}

// The same word, or the same number.
bool is_value_of(std::string_view list, std::string_view value) {
  const auto number = [](std::string_view text) { return parse_real(text, -1e9, 1e9); };
  return any_word(list, [&](std::string_view word) {
    if (word == value) return true;
    const Result<double> a = number(word), b = number(value);
    return a.ok() && b.ok() && *a == *b;
  });
}

}  // namespace

std::span<const LlamaOption> llama_options() { return kOptions; }

const LlamaOption* find_llama_option(const CLI::App& command, std::string_view name) {
  if (command.get_option_no_throw("--model") == nullptr) return nullptr;
  const auto found =
      std::find_if(std::begin(kOptions), std::end(kOptions),
                   [&](const LlamaOption& option) { return is_one_of(option.names, name); });
  return found == std::end(kOptions) ? nullptr : found;
}

bool needs_value(const LlamaOption& option) { return option.takes == Takes::value; }

bool takes_value(const LlamaOption& option, std::string_view next_word) {
  if (option.takes != Takes::maybe) return needs_value(option);
  return is_one_of("on off auto 0 1 true false enabled disabled yes no", next_word);
}

Result<LlamaVerdict> judge(const LlamaOption& option, const std::string& name,
                           const std::optional<std::string>& value) {
  const std::string said = value ? name + " " + *value : name;
  const std::string text(option.text);
  LlamaVerdict verdict;
  switch (option.effect) {
    case Effect::serve:
    case Effect::single_turn: {
      const size_t blank = text.find(' ');
      verdict.serves = text.substr(0, blank);
      verdict.value = blank == text.npos ? value : text.substr(blank + 1);
      break;
    }
    case Effect::idle:
      if (!option.only.empty() && value && !is_value_of(option.only, *value)) {
        return invalid_argument(said + ": " + text);
      }
      verdict.note = said + " changes nothing here: " + text;
      return verdict;
    case Effect::refuse:
      return invalid_argument(said + ": " + text);
    case Effect::conversation:
    case Effect::completion:
      break;
  }
  if (option.effect != Effect::serve) verdict.mode = LlamaMode{option.effect, name};
  return verdict;
}

Status check_modes(const CLI::App& command, std::span<const LlamaMode> modes, bool has_prompt,
                   bool is_chat) {
  for (const LlamaMode& mode : modes) {
    if (command.get_name() != "run") {
      return invalid_argument(mode.name + ": kvik " + command.get_name() +
                              " holds no conversation");
    }
    if (mode.effect == Effect::conversation && has_prompt) {
      return invalid_argument(mode.name +
                              ": with a prompt kvik run gives one answer; leave the prompt out for "
                              "a conversation, or make a message of it with --chat");
    }
    if (mode.effect != Effect::conversation && !has_prompt) {
      return invalid_argument(mode.name +
                              ": without a prompt kvik run holds a conversation; give -p or -f");
    }
    if (mode.effect == Effect::completion && is_chat) {
      return invalid_argument(mode.name + " excludes --chat; leave one out");
    }
  }
  return {};
}

}  // namespace kvik::cli
