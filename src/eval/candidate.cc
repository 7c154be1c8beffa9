#include "kvik/eval/candidate.h"

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
  return k == v ? k : k + ":" + v;
}

Result<CandidateFormat> parse_candidate_format(std::string_view name) {
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

Status check(const CandidateFormat& format, const ModelInfo& model) {
  Status status = format.rounded_k ? check_ggml(*format.rounded_k, model.head_dim_k)
                                   : check_keys(format.format.k, model.head_dim_k);
  if (!status.ok()) return status;
  return format.rounded_v ? check_ggml(*format.rounded_v, model.head_dim_v)
                          : check_values(format.format.v, model.head_dim_v);
}

Result<Candidate> make_candidate(const Model& model, const CandidateFormat& format) {
  const ModelInfo& info = model.info();
  if (Status status = check(format, info); !status.ok()) return status;
  Candidate candidate;
  candidate.name = format.name();
  candidate.cache.format = format.format;
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
