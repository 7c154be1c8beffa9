// Names of the ways to store a cache, as options take them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "kvik/format/kv_format.h"
#include "kvik/model/model.h"

namespace kvik::cli {

// Accept the names of kv_names.h and replace them by ours; what a foreign name became is said on
// stderr.
const CLI::Validator& key_type();
const CLI::Validator& value_type();
// "K:V", one name for both or a preset, and the endings of candidate.h ("+first4").
const CLI::Validator& kv_way();
const CLI::Validator& kv_way_or_auto();
// The same and llama.cpp's own formats, which `eval` compares with.
const CLI::Validator& kv_way_or_ggml();
// A mode of KV-Quant (off, q8, q6, q4 and their other names), said on stderr with what it became;
// replaced by a name of kv_way().
const CLI::Validator& kv_quant_mode();

KvFormat kv_format(const std::string& type_k, const std::string& type_v);
// What can hold this model's keys and values: every code on both sides, TurboQuant's in pairs.
std::vector<KvFormat> listed_formats(const ModelInfo& info);

}  // namespace kvik::cli
