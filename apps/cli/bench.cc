// kvik bench: tokens per second, in the shape of llama-bench.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <memory>
#include <optional>

#include "arguments.h"
#include "commands.h"
#include "kv.h"
#include "kvik/core/cpu_features.h"
#include "kvik/core/thread_team.h"
#include "numbers.h"
#include "options.h"
#include "terminal_text.h"

namespace kvik::cli {
namespace {

struct BenchOptions {
  std::string model, output;
  std::vector<int> prompts{512}, generations{128}, depths{0}, threads{num_usable_processors()};
  KvListOptions kv;
  int batch = 512;
  int repetitions = 5;
  bool no_warmup = false;
  std::string clock = "wall";
  const CLI::Option *prompts_option = nullptr, *generations_option = nullptr,
                    *clock_option = nullptr;
};

struct Measurement {
  int num_prompt = 0, num_generated = 0, depth = 0, threads = 0;
  KvOptions kv;
  std::vector<int> wide_layers;
  std::optional<int> key_frame;  // of calibrated keys
  std::vector<double> seconds;

  int num_tokens() const { return num_prompt + num_generated; }
  std::string name() const {
    std::string text = num_prompt > 0 ? format("pp%d", num_prompt) : format("tg%d", num_generated);
    if (depth > 0) text += format(" @ d%d", depth);
    return text;
  }
  std::vector<double> rates() const {
    std::vector<double> all;
    for (const double s : seconds) all.push_back(num_tokens() / s);
    return all;
  }
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double middle = mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - middle) * (value - middle);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

// Token ids without meaning, the same in every run.
std::vector<TokenId> arbitrary_ids(int count, int vocab_size) {
  std::vector<TokenId> ids;
  Random random(1);
  for (int i = 0; i < count; ++i) {
    ids.push_back(static_cast<TokenId>(random.next() % static_cast<uint64_t>(vocab_size)));
  }
  return ids;
}

// One pass: the prompt at once, or single tokens one after the other.
Status pass(Session& session, std::span<const TokenId> ids, bool one_by_one) {
  if (!one_by_one) return session.feed(ids);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (Status status = session.feed(ids.subspan(i, 1)); !status.ok()) return status;
  }
  return {};
}

// The first `depth` tokens of the session, read from the start.
Status read_anew(Session& session, int depth) {
  if (Status status = session.truncate(0); !status.ok() || depth == 0) return status;
  const int vocab_size = session.runner().model().tokenizer().vocab_size();
  return session.feed(arbitrary_ids(depth, vocab_size));
}

// Back to `depth` tokens; anew where a window has given their rows back.
Status go_back(Session& session, int depth) {
  Status status = session.truncate(depth);
  return status.code() == StatusCode::unsupported ? read_anew(session, depth) : status;
}

// Seconds since some moment: of the wall, or of this process on processors.
double now(const BenchOptions& options) {
  if (options.clock == "cpu") {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

Status measure(const BenchOptions& options, Session& session, Measurement& result) {
  const int vocab_size = session.runner().model().tokenizer().vocab_size();
  const std::vector<TokenId> ids = arbitrary_ids(result.num_tokens(), vocab_size);
  const bool one_by_one = result.num_generated > 0;
  for (int i = options.no_warmup ? 0 : -1; i < options.repetitions; ++i) {
    // Warming up takes one token of generation, not all of them.
    const std::span<const TokenId> part =
        i < 0 && one_by_one ? std::span(ids).subspan(0, 1) : std::span(ids);
    const double start = now(options);
    if (Status status = pass(session, part, one_by_one); !status.ok()) return status;
    const double seconds = now(options) - start;
    if (i >= 0) result.seconds.push_back(seconds);
    if (Status status = go_back(session, result.depth); !status.ok()) return status;
  }
  return {};
}

nlohmann::ordered_json to_json(const BenchOptions& options, const Model& model,
                               const std::string& backend, const Measurement& m) {
  using json = nlohmann::ordered_json;
  std::vector<double> nanoseconds;
  for (const double s : m.seconds) nanoseconds.push_back(std::round(s * 1e9));
  const std::vector<double> rates = m.rates();
  return {{"version", KVIK_VERSION},
          {"cpu_info", describe(detect_cpu_features())},
          {"backend", backend},
          {"model_filename", options.model},
          {"model_type", model.info().name},
          {"model_size", model.info().weight_bytes},
          {"model_n_params", model.info().num_parameters},
          {"n_batch", options.batch},
          {"n_threads", m.threads},
          {"type_k", m.kv.type_k},
          {"type_v", m.kv.type_v},
          {"kv", m.kv.name()},
          {"exact_first", m.kv.first},
          {"exact_recent", m.kv.recent},
          {"f16_layers", m.wide_layers},
          {"key_frame", m.key_frame ? json(*m.key_frame) : json(nullptr)},
          {"n_prompt", m.num_prompt},
          {"n_gen", m.num_generated},
          {"n_depth", m.depth},
          {"clock", options.clock},
          {"test", m.name()},
          {"avg_ns", mean(nanoseconds)},
          {"stddev_ns", deviation(nanoseconds)},
          {"avg_ts", mean(rates)},
          {"stddev_ts", deviation(rates)},
          {"samples_ns", nanoseconds},
          {"samples_ts", rates}};
}

// Also of a way that is not settled yet: those that --kv-quality names have such keys.
bool is_calibrated(const KvOptions& way) {
  return way.calibration != "off" && (!way.quality.empty() || is_rotated(way.format().k));
}

// With a column for what is kept wider, where anything is.
std::string header(bool has_names, const std::string& clock) {
  const std::string names = has_names ? "kv | " : "";
  const std::string rate = clock == "cpu" ? "t/cpu-s" : "t/s";
  return "| model | size | params | backend | threads | type_k | type_v | " + names + "test | " +
         rate + " |\n| --- | ---: | ---: | --- | ---: | ---: | ---: | " +
         (has_names ? "---: | " : "") + "---: | ---: |\n";
}

std::string to_row(const Model& model, const std::string& backend, const Measurement& m,
                   bool has_names) {
  const ModelInfo& info = model.info();
  const std::vector<double> rates = m.rates();
  std::string row =
      format("| %s | %s | %.2f M | %s | %d | %s | %s | ", markdown_cell(info.name).c_str(),
             bytes_text(info.weight_bytes).c_str(), static_cast<double>(info.num_parameters) / 1e6,
             backend.c_str(), m.threads, m.kv.type_k.c_str(), m.kv.type_v.c_str());
  if (has_names) row += m.kv.name() + " | ";
  return row + format("%s | %.2f ± %.2f |\n", m.name().c_str(), mean(rates), deviation(rates));
}

// Runs and prints all tests with one number of threads and one format.
class Bench {
 public:
  Bench(const BenchOptions& options, std::shared_ptr<const Model> model, bool has_names)
      : options_(options), model_(std::move(model)), has_names_(has_names) {}

  Status run(const std::shared_ptr<ModelRunner>& runner, const KvOptions& kv) {
    SessionOptions session_options;
    session_options.kv_format = kv.format();
    session_options.kv_protection = kv.protection(model_->info());
    Result<std::shared_ptr<const KeyCalibration>> calibration = calibration_of(*runner, kv);
    if (!calibration.ok()) return calibration.status();
    session_options.key_calibration = *calibration;
    session_options.context = *std::max_element(options_.depths.begin(), options_.depths.end()) +
                              std::max(longest(options_.prompts), longest(options_.generations));
    Result<std::unique_ptr<Session>> session = Session::create(runner, session_options);
    if (!session.ok()) return session.status();
    session.value()->set_cancel_flag(&Interrupt::flag());
    for (const int depth : options_.depths) {
      if (depth > 0) progress_.show(format("reading %d tokens ...", depth));
      if (Status status = read_anew(*session.value(), depth); !status.ok()) return status;
      Measurement m;
      m.depth = depth;
      m.threads = runner->options().num_threads;
      m.kv = kv;
      m.wide_layers = session_options.kv_protection.wide_layers;
      if (*calibration != nullptr) m.key_frame = (*calibration)->frame;
      for (const auto& [count, is_prompt] : tests()) {
        m.num_prompt = is_prompt ? count : 0;
        m.num_generated = is_prompt ? 0 : count;
        m.seconds.clear();
        progress_.show(m.name() + " ...");
        if (Status status = measure(options_, **session, m); !status.ok()) return status;
        progress_.clear();
        print(std::string(runner->backend()->name()), m);
      }
    }
    return {};
  }

  int finish() {
    if (options_.output == "json" && !json_.empty()) out_.write_json(json_);
    return out_.finish();
  }

 private:
  static int longest(const std::vector<int>& counts) {
    return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  }

  // Read or made once, for all ways.
  Result<std::shared_ptr<const KeyCalibration>> calibration_of(ModelRunner& runner,
                                                               const KvOptions& kv) {
    const bool is_wanted = is_calibrated(kv);
    if (is_wanted && calibration_ != nullptr) return calibration_;
    Result<std::shared_ptr<const KeyCalibration>> calibration = key_calibration(kv, runner);
    if (is_wanted && calibration.ok()) calibration_ = *calibration;
    return calibration;
  }

  std::vector<std::pair<int, bool>> tests() const {
    std::vector<std::pair<int, bool>> all;
    for (const int count : options_.prompts) all.emplace_back(count, true);
    for (const int count : options_.generations) all.emplace_back(count, false);
    std::erase_if(all, [](const auto& test) { return test.first == 0; });
    return all;
  }

  void print(const std::string& backend, const Measurement& m) {
    if (options_.output == "json") {
      json_.push_back(to_json(options_, *model_, backend, m));
      return;
    }
    if (!has_header_) out_.write(header(has_names_, options_.clock));
    has_header_ = true;
    out_.write(to_row(*model_, backend, m, has_names_));
  }

  const BenchOptions& options_;
  std::shared_ptr<const Model> model_;
  std::shared_ptr<const KeyCalibration> calibration_;
  Output out_;
  Progress progress_;
  bool has_names_;
  bool has_header_ = false;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
};

int bench(const BenchOptions& options) {
  const auto nothing = [](int count) { return count == 0; };
  if (std::all_of(options.prompts.begin(), options.prompts.end(), nothing) &&
      std::all_of(options.generations.begin(), options.generations.end(), nothing)) {
    return usage_error(name_given(*options.prompts_option) + " 0 and " +
                       name_given(*options.generations_option) + " 0 leave nothing to measure");
  }
  if (options.clock == "cpu" && options.threads != std::vector{1}) {
    return usage_error(name_given(*options.clock_option) +
                       " cpu would count threads that wait for each other; give -t 1");
  }
  Result<std::vector<KvOptions>> ways = ways_of(options.kv, {KvFormat{}});
  if (!ways.ok()) return usage_error(ways.status().message());
  // A calibration is kept: it is made of weights that were looked at.
  const bool is_any_calibrated = std::any_of(ways->begin(), ways->end(), &is_calibrated);
  Result<std::shared_ptr<const Model>> model = load_header(options.model);
  if (!model.ok()) return fail(model.status());
  if (Status status = resolve(*ways, **model); !status.ok()) return fail(status);
  if (is_any_calibrated) {
    if (Status status = check_calibration(options.kv, **model); !status.ok()) return fail(status);
    model = Model::load(options.model, {.num_threads = options.threads.front()});
    if (!model.ok()) return fail(model.status());
  }
  Interrupt::install();
  const bool has_names = std::any_of(ways->begin(), ways->end(), [](const KvOptions& way) {
    return way.name().find('+') != std::string::npos;
  });
  Bench bench(options, *model, has_names);
  for (const int threads : options.threads) {
    RunnerOptions runner_options;
    runner_options.num_threads = threads;
    runner_options.max_batch_tokens = options.batch;
    Result<std::unique_ptr<ModelRunner>> created = ModelRunner::create(*model, runner_options);
    if (!created.ok()) return fail(created.status());
    const std::shared_ptr<ModelRunner> runner = std::move(created).value();
    for (const KvOptions& way : *ways) {
      if (Status status = bench.run(runner, way); !status.ok()) return fail(status);
    }
  }
  return bench.finish();
}

CLI::Option* add_list(CLI::App& command, const char* name, std::vector<int>& list, int low,
                      int high, const char* description) {
  return command.add_option(name, list, description)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->transform(integer_in(low, high))
      ->capture_default_str();
}

}  // namespace

Command add_bench(CLI::App& program) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command =
      program.add_subcommand("bench", "Measure tokens per second; options take lists like 0,2048");
  add_model_option(*command, options->model);
  options->prompts_option = add_list(*command, "-p,--n-prompt", options->prompts, 0, 1 << 24,
                                     "Tokens of a prompt; 0: none");
  options->generations_option = add_list(*command, "-n,--n-gen", options->generations, 0, 1 << 24,
                                         "Tokens to generate; 0: none");
  add_list(*command, "-d,--n-depth", options->depths, 0, 1 << 24,
           "Tokens in the cache before the test");
  add_list(*command, "-t,--threads", options->threads, 1, 1024, "Threads");
  add_kv_options(*command, options->kv);
  command->add_option("-b,--batch-size", options->batch, "Most tokens computed at once")
      ->transform(integer_in(1, 1 << 20))
      ->capture_default_str();
  command->add_option("-r,--repetitions", options->repetitions, "Times that each test is run")
      ->transform(integer_in(1, 1000000))
      ->capture_default_str();
  options->clock_option =
      command
          ->add_option(
              "--clock", options->clock,
              "Count seconds of the wall, or of the processor (cpu, with -t 1): on a machine "
              "that others share")
          ->check(CLI::IsMember({"wall", "cpu"}))
          ->capture_default_str();
  command->add_flag("--no-warmup", options->no_warmup, "Time the first run too");
  add_output_option(*command, options->output, {"md", "json"});
  return {command, [options] { return bench(*options); }};
}

}  // namespace kvik::cli
