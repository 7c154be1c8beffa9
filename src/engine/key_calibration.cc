#include "kvik/engine/key_calibration.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/calibration_text.h"
#include "format/turn_pairs.h"
#include "kvik/core/dtype.h"

namespace kvik {
namespace {

constexpr int kSkipped = 4;      // positions whose keys are unlike all others: attention sinks
constexpr int kMinTokens = 8;    // so that at least some keys are counted
constexpr double kFloor = 1e-4;  // of the mean over dims, added to every variance
constexpr std::array<int64_t, 4> kFarDistances = {512, 2048, 8192, 16384};

float to_f16(double x) {
  std::byte bytes[2];
  store_float(DType::f16, bytes, static_cast<float>(x));
  return load_float(DType::f16, bytes);
}

// cos and sin of the angles of `begin` positions, which may be negative.
struct Turn {
  std::vector<double> cos, sin;
  Turn(const KeyRope& rope, int64_t begin) {
    for (const double frequency : rope.frequencies) {
      const double angle = static_cast<double>(begin) * frequency;
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
  }
};

// A row turned back.
void turned(const KeyRope& rope, const Turn& turn, const float* row, std::span<double> out) {
  std::copy_n(row, out.size(), out.begin());
  internal::turn_pairs(rope.pairs, turn.cos.data(), turn.sin.data(), turn.cos.size(), -1.0,
                       out.data());
}

// Sums of one KV head.
struct Moments {
  int64_t num_keys = 0;
  int64_t num_queries = 0;
  std::vector<double> k, kk, qq;

  explicit Moments(size_t head_dim) : k(head_dim), kk(head_dim), qq(head_dim) {}
};

// Sums of the layers of a model, over the texts.
class Observer {
 public:
  Observer(const Model& model, int frame) : model_(model), frame_(frame) {
    const ModelInfo& info = model.info();
    const auto heads = static_cast<size_t>(info.num_kv_heads);
    layers_.assign(static_cast<size_t>(info.num_layers),
                   std::vector(heads, Moments(static_cast<size_t>(info.head_dim_k))));
    row_.resize(static_cast<size_t>(info.head_dim_k));
  }

  // Rows of new tokens of a text that is num_tokens long.
  void add(const LayerRows& rows) {
    const KeyRope rope = model_.key_rope(rows.layer);
    add_keys(rope, rows);
    const int64_t last = rows.positions.back();
    for (int64_t begin = 0; begin <= last; begin += frame_) add_queries(rope, rows, begin);
    for (const int64_t distance : kFarDistances) {
      const int64_t frames = (distance + frame_ - 1) / frame_;
      add_queries(rope, rows, -frames * frame_);
    }
  }

  LayerKeyCalibration result(int layer) const {
    const KeyRope rope = model_.key_rope(layer);
    LayerKeyCalibration made;
    made.pairs = rope.pairs;
    made.frequencies.assign(rope.frequencies.begin(), rope.frequencies.end());
    for (const Moments& head : layers_[static_cast<size_t>(layer)]) solve(head, made);
    return made;
  }

 private:
  const float* row_of(const TensorView& t, int64_t token, int64_t head) const {
    return reinterpret_cast<const float*>(t.at(token, head));
  }

  void add_keys(const KeyRope& rope, const LayerRows& rows) {
    std::vector<Moments>& heads = layers_[static_cast<size_t>(rows.layer)];
    for (size_t i = 0; i < rows.positions.size(); ++i) {
      if (rows.positions[i] < kSkipped) continue;
      const Turn turn(rope, rows.positions[i] / frame_ * int64_t{frame_});
      for (size_t h = 0; h < heads.size(); ++h) {
        turned(rope, turn, row_of(rows.k, static_cast<int64_t>(i), static_cast<int64_t>(h)), row_);
        ++heads[h].num_keys;
        for (size_t d = 0; d < row_.size(); ++d) {
          heads[h].k[d] += row_[d];
          heads[h].kk[d] += row_[d] * row_[d];
        }
      }
    }
  }

  // Queries at `begin` or later, turned back by it.
  void add_queries(const KeyRope& rope, const LayerRows& rows, int64_t begin) {
    std::vector<Moments>& heads = layers_[static_cast<size_t>(rows.layer)];
    const int64_t num_heads = rows.q.dim(1);
    const int64_t group = num_heads / static_cast<int64_t>(heads.size());
    const Turn turn(rope, begin);
    for (size_t i = 0; i < rows.positions.size(); ++i) {
      if (rows.positions[i] < begin) continue;
      for (int64_t h = 0; h < num_heads; ++h) {
        Moments& moments = heads[static_cast<size_t>(h / group)];
        turned(rope, turn, row_of(rows.q, static_cast<int64_t>(i), h), row_);
        ++moments.num_queries;
        for (size_t d = 0; d < row_.size(); ++d) moments.qq[d] += row_[d] * row_[d];
      }
    }
  }

  static void solve(const Moments& head, LayerKeyCalibration& made) {
    const size_t n = head.k.size();
    const auto keys = static_cast<double>(head.num_keys);
    const auto queries = static_cast<double>(head.num_queries);
    std::vector<double> var_k(n), var_q(n);
    double sum_k = 0, sum_q = 0;
    for (size_t d = 0; d < n; ++d) {
      const double mean = head.k[d] / keys;
      const float centre = to_f16(mean);
      const double off = mean - double{centre};
      made.centre.push_back(centre);
      var_k[d] = std::max(0.0, head.kk[d] / keys - mean * mean + off * off);
      var_q[d] = head.qq[d] / queries;
      sum_k += var_k[d];
      sum_q += var_q[d];
    }
    // A head that never changes, or that nobody asks: any diagonal is as good.
    if (!(sum_k > 0) || !(sum_q > 0)) {
      made.diagonal.insert(made.diagonal.end(), n, 1.0F);
      return;
    }
    std::vector<double> a(n);
    double scaled = 0;
    for (size_t d = 0; d < n; ++d) {
      var_k[d] += kFloor * sum_k / static_cast<double>(n);
      var_q[d] += kFloor * sum_q / static_cast<double>(n);
      a[d] = std::sqrt(std::sqrt(var_q[d] / var_k[d]));
      scaled += a[d] * a[d] * var_k[d];
    }
    const double scale = std::sqrt(sum_k * (1 + kFloor) / scaled);
    // The ratio of two diagonals is at most (1e4 n)^(1/2): no f16 over- or underflows.
    for (size_t d = 0; d < n; ++d) made.diagonal.push_back(to_f16(a[d] * scale));
  }

  const Model& model_;
  int frame_;
  std::vector<std::vector<Moments>> layers_;  // [layer][KV head]
  std::vector<double> row_;
};

Status run_text(ModelRunner& runner, std::span<const TokenId> text, int& done, int num_tokens,
                const CalibrationParams& params) {
  ModelCacheOptions options;
  options.format = {KvCode::f32, KvCode::f32};
  options.max_tokens = static_cast<int>(text.size());
  Result<CacheSet> caches = runner.make_caches(options);
  if (!caches.ok()) return caches.status();
  Sequence sequence = caches->new_sequence();
  const auto batch = static_cast<size_t>(runner.options().max_batch_tokens);
  for (size_t begin = 0; begin < text.size(); begin += batch) {
    const SequenceTokens step{&sequence, text.subspan(begin, std::min(batch, text.size() - begin))};
    if (Status status = runner.forward(*caches, {&step, 1}); !status.ok()) return status;
    done += static_cast<int>(step.tokens.size());
    if (params.on_progress && !params.on_progress(done, num_tokens)) {
      return {StatusCode::cancelled, "stopped by the caller"};
    }
  }
  return {};
}

}  // namespace

Result<KeyCalibration> calibrate_keys(ModelRunner& runner,
                                      std::span<const std::vector<TokenId>> texts,
                                      const CalibrationParams& params) {
  if (params.frame != 128 && params.frame != 256 && params.frame != 512) {
    return invalid_argument("frame is " + std::to_string(params.frame) +
                            " tokens; frames of 128, 256 and 512 exist");
  }
  size_t num_tokens = 0;
  for (const std::vector<TokenId>& text : texts) {
    if (text.empty()) return invalid_argument("a calibration text is empty");
    num_tokens += text.size();
  }
  if (num_tokens < kMinTokens * std::max<size_t>(texts.size(), 1)) {
    return invalid_argument("the calibration texts have " + std::to_string(num_tokens) +
                            " tokens; give about 2000, at least 8 each");
  }
  Observer observer(runner.model(), params.frame);
  runner.set_row_hook([&](const LayerRows& rows) { observer.add(rows); });
  int done = 0;
  Status status;
  for (const std::vector<TokenId>& text : texts) {
    if (status.ok()) status = run_text(runner, text, done, static_cast<int>(num_tokens), params);
  }
  runner.set_row_hook({});
  if (!status.ok()) return status;
  const ModelInfo& info = runner.model().info();
  KeyCalibration calibration;
  calibration.frame = params.frame;
  for (int i = 0; i < info.num_layers; ++i) calibration.layers.push_back(observer.result(i));
  if (Status bad = check(calibration, info.num_layers, info.num_kv_heads, info.head_dim_k);
      !bad.ok()) {
    return Status(StatusCode::unsupported,
                  "the model's keys cannot be calibrated: " + bad.message());
  }
  return calibration;
}

Result<std::vector<std::vector<TokenId>>> calibration_texts(const Model& model) {
  std::vector<std::vector<TokenId>> texts;
  for (const std::string_view text :
       {internal::calibration_prose(), internal::calibration_code()}) {
    Result<std::vector<TokenId>> tokens = model.tokenizer().encode(text);
    if (!tokens.ok()) return tokens.status();
    texts.push_back(std::move(tokens).value());
  }
  return texts;
}

}  // namespace kvik
