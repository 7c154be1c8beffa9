#include "kvik/eval/candidate.h"

#include <charconv>
#include <utility>

#include "kvik/format/kv_names.h"

namespace kvik {
namespace {

std::string side_name(KvCode code, const std::optional<GgmlFormat>& rounded) {
  return std::string(rounded ? ggml_format_name(*rounded) : kv_code_name(code));
}

constexpr std::string_view kGgmlNames =
    "; for comparison also ggml-q8_0, ggml-q5_1, ggml-q4_0, and these with -rot";

Status with_ggml_names(const Status& status) {
  return invalid_argument(status.message() + std::string(kGgmlNames));
}

}  // namespace

std::string CandidateFormat::name() const {
  const std::string k = side_name(format.k, rounded_k);
  const std::string v = side_name(format.v, rounded_v);
  std::string name = k == v ? k : k + ":" + v;
  if (exact_first > 0) name += "+first" + std::to_string(exact_first);
  if (exact_recent > 0) name += "+recent" + std::to_string(exact_recent);
  for (size_t i = 0; i < wide_layers.size(); ++i) {
    name += (i == 0 ? "+skip" : "/") + std::to_string(wide_layers[i]);
  }
  if (!is_calibrated) name += "+nocalib";
  return name;
}

namespace {

// All of `text` as a number within +-2^20.
std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  if (!is_whole || value < -(1 << 20) || value > 1 << 20) return std::nullopt;
  return value;
}

// One "+..." without its sign; false if it is none, or was there before.
bool parse_suffix(std::string_view suffix, CandidateFormat& format) {
  if (suffix == "nocalib" && format.is_calibrated) {
    format.is_calibrated = false;
    return true;
  }
  for (const auto& [word, value] :
       {std::pair<std::string_view, int*>("first", &format.exact_first),
        std::pair<std::string_view, int*>("recent", &format.exact_recent)}) {
    if (!suffix.starts_with(word)) continue;
    const std::optional<int> count = parse_number(suffix.substr(word.size()));
    if (!count || *count < 1 || *value != 0) return false;
    *value = *count;
    return true;
  }
  if (!suffix.starts_with("skip") || !format.wide_layers.empty()) return false;
  suffix.remove_prefix(4);
  for (;;) {
    const size_t slash = suffix.find('/');
    const std::optional<int> layer = parse_number(suffix.substr(0, slash));
    if (!layer) return false;
    format.wide_layers.push_back(*layer);
    if (slash == std::string_view::npos) return true;
    suffix.remove_prefix(slash + 1);
  }
}

Result<CandidateFormat> parse_sides(std::string_view name);

}  // namespace

Result<CandidateFormat> parse_candidate_format(std::string_view name) {
  const size_t plus = name.find('+');
  Result<CandidateFormat> parsed = parse_sides(name.substr(0, plus));
  if (!parsed.ok() || plus == std::string_view::npos) return parsed;
  std::string_view rest = name.substr(plus + 1);
  for (;;) {
    const size_t next = rest.find('+');
    const std::string_view suffix = rest.substr(0, next);
    if (!parse_suffix(suffix, *parsed)) {
      return invalid_argument("+" + std::string(suffix) +
                              " is nothing that follows a format; there are +first4, +recent64, "
                              "+skip0/-1 and +nocalib, each once and with a number above 0");
    }
    if (next == std::string_view::npos) return parsed;
    rest.remove_prefix(next + 1);
  }
}

namespace {

Result<CandidateFormat> parse_sides(std::string_view name) {
  const size_t colon = name.find(':');
  const std::string_view k_name = name.substr(0, colon);
  const std::string_view v_name = colon == std::string_view::npos ? name : name.substr(colon + 1);
  CandidateFormat parsed;
  parsed.rounded_k = parse_ggml_format(k_name);
  parsed.rounded_v = parse_ggml_format(v_name);
  if (!parsed.rounded_k && !parsed.rounded_v) {
    const Result<KvFormat> format = resolve_format_name(name);
    if (!format.ok()) return with_ggml_names(format.status());
    parsed.format = *format;
    return parsed;
  }
  parsed.format = {KvCode::f32, KvCode::f32};
  if (!parsed.rounded_k) {
    const Result<KvCode> k = resolve_key_name(k_name);
    if (!k.ok()) return with_ggml_names(k.status());
    parsed.format.k = *k;
  }
  if (!parsed.rounded_v) {
    const Result<KvCode> v = resolve_value_name(v_name);
    if (!v.ok()) return with_ggml_names(v.status());
    parsed.format.v = *v;
  }
  return parsed;
}

}  // namespace

Status check(const CandidateFormat& format, const ModelInfo& model) {
  Status status = format.rounded_k ? check_ggml(*format.rounded_k, model.head_dim_k)
                                   : check_keys(format.format.k, model.head_dim_k);
  if (!status.ok()) return status;
  return format.rounded_v ? check_ggml(*format.rounded_v, model.head_dim_v)
                          : check_values(format.format.v, model.head_dim_v);
}

Result<Candidate> make_candidate(const Model& model, const CandidateFormat& format,
                                 const std::shared_ptr<const KeyCalibration>& calibration) {
  const ModelInfo& info = model.info();
  if (Status status = check(format, info); !status.ok()) return status;
  Candidate candidate;
  candidate.name = format.name();
  candidate.cache.format = format.format;
  candidate.cache.protection.exact_first = format.exact_first;
  candidate.cache.protection.exact_recent = format.exact_recent;
  for (const int layer : format.wide_layers) {
    if (layer < -info.num_layers || layer >= info.num_layers) {
      return invalid_argument(candidate.name + ": the model has layers 0 to " +
                              std::to_string(info.num_layers - 1));
    }
    candidate.cache.protection.wide_layers.push_back(layer < 0 ? layer + info.num_layers : layer);
  }
  if (format.is_calibrated && is_rotated(format.format.k)) {
    candidate.cache.key_calibration = calibration;
  }
  candidate.hook = ggml_hook(format.rounded_k, format.rounded_v);
  if (candidate.hook) {
    const KvSpec spec = model.kv_spec(format.format);
    const auto rows = static_cast<int64_t>(info.num_kv_heads);
    int64_t bytes = 0;
    for (int layer = 0; layer < spec.num_layers(); ++layer) {
      bytes += format.rounded_k ? rows * ggml_row_bytes(format.rounded_k->block, info.head_dim_k)
                                : token_bytes_k(spec, layer);
      bytes += format.rounded_v ? rows * ggml_row_bytes(format.rounded_v->block, info.head_dim_v)
                                : token_bytes_v(spec, layer);
    }
    candidate.bytes_per_token = bytes;
  }
  return candidate;
}

Result<int64_t> bytes_per_token(const Model& model, const Candidate& candidate) {
  if (candidate.bytes_per_token) return *candidate.bytes_per_token;
  const Result<std::vector<PagedCacheOptions>> caches = model.cache_options(candidate.cache);
  if (!caches.ok()) return caches.status();
  int64_t bytes = 0;
  for (const PagedCacheOptions& cache : *caches) bytes += token_bytes(cache.spec);
  return bytes;
}

}  // namespace kvik
