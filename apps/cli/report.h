// What commands say about caches and timings.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kvik/engine/session.h"
#include "options.h"

namespace kvik::cli {

// The caches of a model together.
struct KvReport {
  int64_t bytes_per_token = 0;  // as stored, padding included, over all layers
  CacheStats sum;               // of all caches
};
KvReport kv_report(Session& session, const EngineOptions& options);

nlohmann::ordered_json kv_json(Session& session, const EngineOptions& options);
nlohmann::ordered_json timings_json(const SessionTimings& timings);
// On stderr, if the context was full since the timings were reset: what --overflow shift dropped.
void warn_of_shifts(const Session& session);
// One line for people.
std::string perf_line(Session& session, const EngineOptions& options);

}  // namespace kvik::cli
