#include "report.h"

#include "cli.h"

namespace kvik::cli {

using nlohmann::ordered_json;

namespace {

// Of the packed rows, layers that stay wide included; rows that are exact beside them are not.
int64_t bytes_per_token(const Model& model, const KvOptions& options) {
  KvSpec spec = model.kv_spec(options.format());
  const KvProtection protection = options.protection(model.info());
  for (const int layer : protection.wide_layers) {
    spec.layers[static_cast<size_t>(layer)] = protection.wide_format;
  }
  return token_bytes(spec);
}

}  // namespace

KvReport kv_report(Session& session, const EngineOptions& options) {
  KvReport report;
  const Model& model = session.runner().model();
  report.bytes_per_token = bytes_per_token(model, options.kv);
  CacheStats& sum = report.sum;
  for (const CacheStats& stats : session.cache_stats()) {
    sum.backend = stats.backend;
    sum.max_blocks += stats.max_blocks;
    sum.committed_blocks += stats.committed_blocks;
    sum.used_blocks += stats.used_blocks;
    sum.shared_blocks += stats.shared_blocks;
    sum.nbytes += stats.nbytes;
    sum.committed_bytes += stats.committed_bytes;
    sum.resident_bytes += stats.resident_bytes;
    sum.encoded_rows += stats.encoded_rows;
    sum.copied_rows += stats.copied_rows;
    sum.copy_on_write_copies += stats.copy_on_write_copies;
  }
  return report;
}

ordered_json kv_json(Session& session, const EngineOptions& options) {
  const KvReport report = kv_report(session, options);
  const CacheStats& sum = report.sum;
  return {{"layout", options.layout},
          {"type_k", options.kv.type_k},
          {"type_v", options.kv.type_v},
          {"exact_first", options.kv.first},
          {"exact_recent", options.kv.recent},
          {"f16_layers", options.kv.skip_layers},
          {"block_size", options.block_size},
          {"backend", sum.backend},
          {"context", session.context()},
          {"tokens", session.num_cached()},
          {"overflow", options.overflow},
          {"kept_tokens", session.kept()},
          {"shifts", session.timings().shifts},
          {"dropped_tokens", session.timings().dropped_tokens},
          {"bytes_per_token", report.bytes_per_token},
          {"committed_bytes", sum.committed_bytes},
          {"resident_bytes", sum.resident_bytes},
          {"nbytes", sum.nbytes},
          {"max_blocks", sum.max_blocks},
          {"committed_blocks", sum.committed_blocks},
          {"used_blocks", sum.used_blocks},
          {"shared_blocks", sum.shared_blocks},
          {"encoded_rows", sum.encoded_rows},
          {"copied_rows", sum.copied_rows}};
}

ordered_json timings_json(const SessionTimings& timings) {
  return {{"prompt_n", timings.prompt_tokens},
          {"prompt_ms", timings.prompt_seconds * 1e3},
          {"prompt_per_second", timings.prompt_tokens_per_second()},
          {"cache_n", timings.reused_tokens},
          {"predicted_n", timings.generated_tokens},
          {"predicted_ms", timings.generation_seconds * 1e3},
          {"predicted_per_second", timings.generated_tokens_per_second()}};
}

void warn_of_shifts(const Session& session) {
  const SessionTimings& timings = session.timings();
  if (timings.shifts == 0) return;
  warn(
      format("the context of %d tokens was full: %lld tokens after the first %d were forgotten, in "
             "%lld shifts (--overflow shift)",
             session.context(), static_cast<long long>(timings.dropped_tokens), session.kept(),
             static_cast<long long>(timings.shifts)));
}

std::string perf_line(Session& session, const EngineOptions& options) {
  const SessionTimings& timings = session.timings();
  const KvReport report = kv_report(session, options);
  std::string line =
      format("prompt %lld tokens (%.1f tokens/s)", static_cast<long long>(timings.prompt_tokens),
             timings.prompt_tokens_per_second());
  if (timings.reused_tokens > 0) {
    line += format(", %lld more from the cache", static_cast<long long>(timings.reused_tokens));
  }
  return line + format(
                    "; answer %lld tokens (%.1f tokens/s); %s cache %s:%s, %d tokens of %lld "
                    "bytes, %s committed",
                    static_cast<long long>(timings.generated_tokens),
                    timings.generated_tokens_per_second(), options.layout.c_str(),
                    options.kv.type_k.c_str(), options.kv.type_v.c_str(), session.num_cached(),
                    static_cast<long long>(report.bytes_per_token),
                    bytes_text(report.sum.committed_bytes).c_str());
}

}  // namespace kvik::cli
