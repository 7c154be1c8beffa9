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
// "K:V", one name for both or a preset, and the endings of candidate.h ("+first4"). `option` is
// what it belongs to, for messages.
CLI::Validator kv_way(const CLI::Option& option);
CLI::Validator kv_way_or_auto(const CLI::Option& option);
// The same and llama.cpp's own formats, which `eval` compares with.
CLI::Validator kv_way_or_ggml(const CLI::Option& option);
// A mode of KV-Quant (off, q8, q6, q4 and their other names), said on stderr with what it became;
// replaced by a name of kv_way().
CLI::Validator kv_quant_mode(const CLI::Option& option);

// Names that the validators take, for completion: of keys, of values, of both sides.
std::vector<std::string> key_type_names();
std::vector<std::string> value_type_names();
std::vector<std::string> way_names();

KvFormat kv_format(const std::string& type_k, const std::string& type_v);
// What can hold this model's keys and values: every code on both sides, TurboQuant's in pairs.
std::vector<KvFormat> listed_formats(const ModelInfo& info);

}  // namespace kvik::cli
