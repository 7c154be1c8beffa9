#include "golden/model_golden.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kvik/engine/perplexity.h"

namespace kvik::test {
namespace {

using nlohmann::json;

// The first characters (not bytes) of the book's chapters.
std::string text_of(const std::filesystem::path& path, int num_characters) {
  std::ifstream in(path, std::ios::binary);
  const std::string book{std::istreambuf_iterator<char>(in), {}};
  size_t begin = book.find("\nChapter 1\n");
  if (begin == std::string::npos) begin = book.find("\nCHAPTER 1\n");
  if (begin == std::string::npos) begin = book.find("\nCHAPTER I\n");
  if (begin == std::string::npos) return {};
  size_t end = ++begin;
  for (; end < book.size(); ++end) {
    const bool starts_character = (static_cast<unsigned char>(book[end]) & 0xC0) != 0x80;
    if (starts_character && num_characters-- == 0) break;
  }
  return book.substr(begin, end - begin);
}

}  // namespace

GoldenModel::GoldenModel(std::string folder, FetchedFile file)
    : folder_(std::move(folder)), file_(std::move(file)) {}

void GoldenModel::SetUp() {
  KVIK_NEEDS_FILE(file_);
  Result<std::shared_ptr<const Model>> model = Model::load(file_.path().string());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  model_ = std::move(model).value();
}

std::vector<json> GoldenModel::read_lines(const std::string& name) const {
  std::ifstream in(folder_ + "/" + name);
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

json GoldenModel::read_json(const std::string& name) const {
  std::ifstream in(folder_ + "/" + name);
  return json::parse(in);
}

std::shared_ptr<ModelRunner> GoldenModel::runner(const RunnerOptions& options) const {
  return std::shared_ptr<ModelRunner>(ModelRunner::create(model_, options).value());
}

std::unique_ptr<Session> GoldenModel::session(std::shared_ptr<ModelRunner> runner, KvCode code,
                                              SessionOptions options) {
  options.kv_format = {code, code};
  if (!options.context) options.context = 2048;
  return Session::create(std::move(runner), options).value();
}

std::vector<TokenId> greedy_answer(Session& session, const std::vector<TokenId>& prompt,
                                   int count) {
  EXPECT_TRUE(session.truncate(0).ok());
  const Status status = session.feed(prompt);
  EXPECT_TRUE(status.ok()) << status.to_string();
  GenerateParams params;
  params.max_tokens = count;
  params.ignore_end_tokens = true;
  Result<Generated> answer = session.generate(params);
  EXPECT_TRUE(answer.ok()) << answer.status().to_string();
  return answer.ok() ? answer->ids : std::vector<TokenId>();
}

void GoldenModel::check_shape() const {
  const json golden = read_json("model.json");
  const json& derived = golden.at("derived");
  const ModelInfo& info = model_->info();
  const json& metadata = golden.at("metadata");
  const auto architecture = metadata.at("general.architecture").get<std::string>();
  EXPECT_EQ(info.architecture, architecture);
  EXPECT_EQ(info.name, metadata.at("general.name"));
  EXPECT_EQ(info.num_layers, derived.at("layers"));
  EXPECT_EQ(info.embedding_dim, derived.at("hidden"));
  EXPECT_EQ(info.num_heads, derived.at("q_heads"));
  EXPECT_EQ(info.num_kv_heads, derived.at("kv_heads"));
  EXPECT_EQ(info.head_dim_k, derived.at("head_dim"));
  EXPECT_EQ(info.head_dim_v, derived.at("head_dim"));
  EXPECT_EQ(info.ffn_dim, derived.at("ffn"));
  EXPECT_EQ(info.num_parameters, golden.at("parameters"));
  EXPECT_EQ(info.context_length, metadata.at(architecture + ".context_length"));
  EXPECT_EQ(info.tied_embeddings, derived.at("tied_embeddings"));
}

void GoldenModel::check_greedy(const GoldenTolerance& tolerance) const {
  const std::unique_ptr<Session> session = GoldenModel::session(runner(), tolerance.code);
  const std::vector<json> lines = read_lines("greedy.jsonl");
  ASSERT_GE(lines.size(), 10U);
  int compared = 0;
  for (const json& line : lines) {
    const auto prompt = line.at("prompt").get<std::string>();
    const auto prompt_ids = line.at("prompt_ids").get<std::vector<TokenId>>();
    std::vector<TokenId> encoded =
        model_->tokenizer().encode(prompt, {.parse_special = line.at("parse_special")}).value();
    // A text that spells BOS out was given to the oracle without another one.
    if (model_->tokenizer().has_double_bos(encoded)) encoded.erase(encoded.begin());
    EXPECT_EQ(encoded, prompt_ids);
    const auto expected = line.at("gen_ids").get<std::vector<TokenId>>();
    const auto margins = line.at("margin").get<std::vector<double>>();
    const std::vector<TokenId> ids = greedy_answer(*session, prompt_ids, 64);
    ASSERT_EQ(ids.size(), expected.size());
    for (size_t i = 0; i < ids.size() && margins[i] >= tolerance.margin; ++i) {
      ++compared;
      ASSERT_EQ(ids[i], expected[i])
          << line.at("name") << ", token " << i << ", margin " << margins[i];
    }
  }
  RecordProperty("compared_tokens", compared);
  EXPECT_GT(compared, static_cast<int>(lines.size()) * 64 / 4);
}

void GoldenModel::check_logits(const GoldenTolerance& tolerance) const {
  const std::unique_ptr<Session> session = GoldenModel::session(runner(), tolerance.code);
  const std::vector<json> lines = read_lines("logits.jsonl");
  ASSERT_GE(lines.size(), 10U);
  double worst_logit = 0;
  double worst_log_probability = 0;
  for (const json& line : lines) {
    SCOPED_TRACE(line.at("name").get<std::string>());
    const auto prompt = line.at("prompt_ids").get<std::vector<TokenId>>();
    ASSERT_TRUE(session->truncate(0).ok());
    ASSERT_TRUE(session->feed(prompt).ok());
    const std::span<const float> logits = session->next_logits();
    const json& last = line.at("last");
    const auto ids = last.at("top_ids").get<std::vector<size_t>>();
    const auto values = last.at("top_values").get<std::vector<double>>();
    for (size_t i = 0; i < ids.size(); ++i) {
      worst_logit = std::max(worst_logit, std::abs(double{logits[ids[i]]} - values[i]));
    }
    double sum = 0;
    double exps = 0;
    for (const float logit : logits) {
      sum += double{logit};
      exps += std::exp(double{logit});
    }
    const double size = static_cast<double>(logits.size());
    EXPECT_NEAR(sum / size, last.at("mean").get<double>(), tolerance.logit);
    EXPECT_NEAR(std::log(exps), last.at("logsumexp").get<double>(), tolerance.logit);
    EXPECT_NEAR(double{*std::min_element(logits.begin(), logits.end())},
                last.at("min").get<double>(), tolerance.logit);
    EXPECT_NEAR(double{*std::max_element(logits.begin(), logits.end())},
                last.at("max").get<double>(), tolerance.logit);

    const auto expected = line.at("true_next_logprob").get<std::vector<double>>();
    const std::vector<double> scores = session->score(prompt).value();
    ASSERT_EQ(scores.size(), expected.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      worst_log_probability = std::max(worst_log_probability, std::abs(scores[i] - expected[i]));
    }
  }
  RecordProperty("worst_logit", std::to_string(worst_logit));
  RecordProperty("worst_log_probability", std::to_string(worst_log_probability));
  EXPECT_LE(worst_logit, tolerance.logit);
  EXPECT_LE(worst_log_probability, tolerance.log_probability);
}

FetchedFile GoldenModel::book() const {
  const auto name = read_json("perplexity.json").at("book").get<std::string>();
  return {name, name + ".txt"};
}

std::vector<TokenId> GoldenModel::book_tokens() const {
  const json golden = read_json("perplexity.json");
  const std::string text = text_of(book().path(), golden.at("characters"));
  std::vector<TokenId> tokens = model_->tokenizer().encode(text, {.add_special = true}).value();
  EXPECT_EQ(tokens.size(), golden.at("tokens_with_bos"));
  return tokens;
}

void GoldenModel::check_perplexity(const GoldenTolerance& tolerance, int context,
                                   int most_chunks) const {
  const json golden = read_json("perplexity.json");
  KVIK_NEEDS_FILE(book());
  const std::vector<TokenId> tokens = book_tokens();
  for (const json& oracle : golden.at("oracle")) {
    if (oracle.at("context") != context || oracle.at("kv") != "f32") continue;
    const std::unique_ptr<Session> session = GoldenModel::session(runner(), tolerance.code);
    PerplexityParams params;
    params.context = context;
    params.max_chunks = std::min(oracle.at("chunks").get<int>(), most_chunks);
    const Result<Perplexity> result = perplexity(*session, tokens, params);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    ASSERT_EQ(result->chunks.size(), static_cast<size_t>(*params.max_chunks));
    double second_halves = 0;
    double wholes = 0;
    for (size_t i = 0; i < result->chunks.size(); ++i) {
      const json& nll = oracle.at("chunk_nll").at(i);
      second_halves += nll.at(0).get<double>();
      wholes += nll.at(1).get<double>();
      // The mean of a chunk differs by about the relative error of its perplexity.
      EXPECT_NEAR(result->chunks[i].second_half, nll.at(0).get<double>(), tolerance.perplexity);
      EXPECT_NEAR(result->chunks[i].whole, nll.at(1).get<double>(), tolerance.perplexity);
    }
    const auto count = static_cast<double>(result->chunks.size());
    EXPECT_NEAR(result->ppl / std::exp(second_halves / count), 1, tolerance.perplexity);
    EXPECT_NEAR(result->ppl_whole / std::exp(wholes / count), 1, tolerance.perplexity);
    RecordProperty("ppl", std::to_string(result->ppl));
    return;
  }
  FAIL() << "no golden perplexity for a context of " << context;
}

// The whole promise at once: logits equal to the bit, whatever the machinery.
void GoldenModel::check_same_bits(size_t line_idx) const {
  struct Case {
    bool contiguous;
    int block_size, num_threads, batch;
  };
  const std::vector<Case> cases = {{false, 16, 2, 512}, {true, 16, 2, 512}, {false, 32, 1, 64},
                                   {true, 64, 3, 7},    {false, 64, 3, 7},  {false, 16, 1, 1}};
  const json line = read_lines("greedy.jsonl").at(line_idx);
  const auto prompt = line.at("prompt_ids").get<std::vector<TokenId>>();
  std::vector<TokenId> first_ids;
  std::vector<float> first_logits;
  for (const Case& c : cases) {
    SCOPED_TRACE("contiguous " + std::to_string(c.contiguous) + ", block size " +
                 std::to_string(c.block_size) + ", " + std::to_string(c.num_threads) +
                 " threads, batch " + std::to_string(c.batch));
    const auto session =
        GoldenModel::session(runner({.num_threads = c.num_threads, .max_batch_tokens = c.batch}),
                             KvCode::f16, {.block_size = c.block_size, .contiguous = c.contiguous});
    const std::vector<TokenId> ids = greedy_answer(*session, prompt, 24);
    ASSERT_TRUE(session->feed({}).ok());
    const std::vector<float> logits(session->next_logits().begin(), session->next_logits().end());
    if (first_ids.empty()) {
      first_ids = ids;
      first_logits = logits;
    }
    EXPECT_EQ(ids, first_ids);
    EXPECT_TRUE(logits == first_logits);
  }
}

}  // namespace kvik::test
