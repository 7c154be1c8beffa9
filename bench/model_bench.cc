// Tokens a second of a real model: a prompt, and generation at several depths.
//   model_bench MODEL [threads=2] [rounds=3] [kv=f16] [prompt=512] [generate=32] [depth...=0 2048]
// Before timing, a prompt fed whole must give the bits of the same prompt fed in pieces. Wall time
// is what users see; processor time of all threads is what a busy machine does not spoil.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/harness.h"
#include "kvik/engine/session.h"

namespace {

using kvik::ModelRunner;
using kvik::Session;
using kvik::TokenId;
using kvik::bench::seconds_now;

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <class T>
T expect(kvik::Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "model_bench: %s\n", result.status().to_string().c_str());
    std::exit(1);
  }
  return std::move(result).value();
}
void expect(const kvik::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "model_bench: %s\n", status.to_string().c_str());
  std::exit(1);
}

// Any tokens do: the time does not depend on them.
std::vector<TokenId> some_tokens(int count, int vocab_size) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>((i * 977 + 13) % vocab_size));
  return tokens;
}

struct Rates {
  std::vector<double> wall, processor;

  template <class Work>
  void measure(int num_tokens, const Work& work) {
    const double wall_begin = seconds_now();
    const double processor_begin = processor_seconds();
    work();
    wall.push_back(num_tokens / (seconds_now() - wall_begin));
    processor.push_back(num_tokens / (processor_seconds() - processor_begin));
  }
  nlohmann::json json(const char* what, int num_tokens, int depth) const {
    return {{"what", what},
            {"tokens", num_tokens},
            {"depth", depth},
            {"tokens_per_second", kvik::bench::summary(wall)},
            {"tokens_per_processor_second", kvik::bench::summary(processor)}};
  }
};

void check(Session& session, const std::vector<TokenId>& prompt) {
  const std::span<const TokenId> part =
      std::span(prompt).first(std::min<size_t>(40, prompt.size()));
  expect(session.truncate(0));
  expect(session.feed(part));
  const std::vector<float> whole(session.next_logits().begin(), session.next_logits().end());
  expect(session.truncate(0));
  expect(session.feed(part.first(part.size() / 2)));
  expect(session.feed(part.subspan(part.size() / 2)));
  if (!std::equal(whole.begin(), whole.end(), session.next_logits().begin())) {
    std::fprintf(stderr, "model_bench: a prompt in two parts gives other bits\n");
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(
        stderr,
        "usage: model_bench MODEL [threads] [rounds] [kv] [prompt] [generate] [depth...]\n");
    return 2;
  }
  const auto number = [&](int i, int fallback) {
    return argc > i ? kvik::bench::whole_number("argument", argv[i]) : fallback;
  };
  const int num_threads = number(2, 2);
  const int rounds = number(3, 3);
  const kvik::KvFormat format = expect(kvik::parse_kv_format(argc > 4 ? argv[4] : "f16"));
  const int prompt_size = number(5, 512);
  const int num_generated = number(6, 32);
  std::vector<int> depths;
  for (int i = 7; i < argc; ++i) depths.push_back(kvik::bench::whole_number("depth", argv[i]));
  if (depths.empty()) depths = {0, 2048};
  if (rounds < 1 || prompt_size < 1 || num_generated < 1) return 2;

  const std::shared_ptr<const kvik::Model> model = expect(kvik::Model::load(argv[1]));
  const std::shared_ptr<ModelRunner> runner =
      expect(ModelRunner::create(model, {.num_threads = num_threads}));
  const int deepest = *std::max_element(depths.begin(), depths.end());
  const std::unique_ptr<Session> session =
      expect(Session::create(runner, {.context = std::max(prompt_size, deepest + 1) + num_generated,
                                      .kv_format = format}));
  const int vocab_size = model->info().vocab_size;
  const std::vector<TokenId> prompt = some_tokens(prompt_size, vocab_size);
  check(*session, prompt);

  nlohmann::json rows = nlohmann::json::array();
  Rates prompt_rates;
  for (int i = 0; i < rounds; ++i) {
    expect(session->truncate(0));
    prompt_rates.measure(prompt_size, [&] { expect(session->feed(prompt)); });
  }
  rows.push_back(prompt_rates.json("prompt", prompt_size, 0));
  for (const int depth : depths) {
    // One token at depth 0 starts the model.
    const std::vector<TokenId> before = some_tokens(std::max(depth, 1), vocab_size);
    Rates rates;
    expect(session->truncate(0));
    expect(session->feed(before));
    for (int i = 0; i < rounds; ++i) {
      expect(session->truncate(static_cast<int>(before.size())));
      expect(session->feed({}));
      kvik::GenerateParams params;
      params.max_tokens = num_generated;
      params.ignore_end_tokens = true;
      rates.measure(num_generated, [&] { expect(session->generate(params)); });
    }
    rows.push_back(rates.json("generate", num_generated, depth));
  }
  const nlohmann::json report = {{"cpu", kvik::describe(kvik::detect_cpu_features())},
                                 {"isa", kvik::cpu_isa_name(runner->isa())},
                                 {"threads", num_threads},
                                 {"kv", argc > 4 ? argv[4] : "f16"},
                                 {"model", model->info().name},
                                 {"weight_bytes", model->info().weight_bytes},
                                 {"rows", rows}};
  std::printf("%s\n", report.dump(1).c_str());
  return 0;
}
