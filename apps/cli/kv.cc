#include "kv.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <tuple>

#include "arguments.h"
#include "cli.h"
#include "kv_types.h"
#include "kvik/core/buffer.h"
#include "numbers.h"

namespace kvik::cli {
namespace {

// Classes that --kv-quality names and --kv auto walks through, widest first. All but the first keep
// kExactFirst tokens exact.
struct KvClass {
  const char* name;
  KvFormat format;
};
constexpr std::array<KvClass, 7> kClasses = {{{"f16", {KvCode::f16, KvCode::f16}},
                                              {"tq8", {KvCode::tq8, KvCode::tq8}},
                                              {"safe", {KvCode::tq8, KvCode::tcq4}},
                                              {"balanced", {KvCode::tcq4, KvCode::tcq4}},
                                              {"small", {KvCode::tcq4, KvCode::tcq3}},
                                              {"tiny", {KvCode::tcq3, KvCode::tcq3}},
                                              {"smallest", {KvCode::tcq2, KvCode::tcq2}}}};
constexpr int kExactFirst = 4;

std::string name_of(KvFormat format) {
  return std::string(kv_code_name(format.k)) + ":" + std::string(kv_code_name(format.v));
}

// Takes a class; exact first tokens where the user named no number.
void take(KvOptions& options, const KvClass& chosen) {
  options.type_k = kv_code_name(chosen.format.k);
  options.type_v = kv_code_name(chosen.format.v);
  if (is_packed(chosen.format.k) && options.first_option->count() == 0) {
    options.first = kExactFirst;
  }
}

bool takes(const KvClass& chosen, const ModelInfo& info) {
  return check_keys(chosen.format.k, info.head_dim_k).ok() &&
         check_values(chosen.format.v, info.head_dim_v).ok();
}

Status choose_by_memory(KvOptions& options, const Model& model, ModelCacheOptions cache) {
  const int64_t limit = memory_for_cache(options);
  int64_t bytes = 0;
  std::string passed;
  for (const KvClass& each : kClasses) {
    if (!takes(each, model.info())) continue;
    KvOptions tried = options;
    take(tried, each);
    cache.format = each.format;
    cache.protection = tried.protection(model.info());
    Result<int64_t> needed = model.cache_bytes(cache);
    if (!needed.ok()) return needed.status();
    bytes = *needed;
    if (bytes > limit) {
      passed += format("%s%s %s", passed.empty() ? "" : ", ", name_of(each.format).c_str(),
                       bytes_text(bytes).c_str());
      continue;
    }
    take(options, each);
    std::string why =
        format("%s auto: %s takes %s of %s for %d tokens", name_given(*options.way_option).c_str(),
               name_of(each.format).c_str(), bytes_text(bytes).c_str(), bytes_text(limit).c_str(),
               cache.max_tokens);
    if (options.first > 0) why += format(", the first %d exact", options.first);
    if (!passed.empty()) why += "; wider ones do not fit (" + passed + ")";
    note(why);
    return {};
  }
  return {StatusCode::out_of_memory,
          format("%s auto: no format holds %d tokens in %s (%s); ask for a shorter context or "
                 "more memory",
                 name_given(*options.way_option).c_str(), cache.max_tokens,
                 bytes_text(limit).c_str(), passed.c_str())};
}

}  // namespace

// What `ulimit -v` leaves: a cache reserves addresses for all of its context at once.
static int64_t address_space_left() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return INT64_MAX;
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE);
}

int64_t memory_for_cache(const KvOptions& options) {
  if (options.memory == 0) return std::min(available_memory_bytes(), address_space_left());
  return static_cast<int64_t>(std::min<uint64_t>(options.memory, INT64_MAX));
}

Result<int> largest_context(const KvOptions& options, const Model& model, ModelCacheOptions cache,
                            int64_t bytes) {
  KvOptions tried = options;
  // Of --kv auto, the narrowest that the model's heads take.
  for (const KvClass& each : kClasses) {
    if (options.quality == each.name || (options.is_auto && takes(each, model.info()))) {
      take(tried, each);
    }
  }
  cache.format = tried.format();
  cache.protection = tried.protection(model.info());
  return model.largest_context(cache, bytes);
}

KvFormat KvOptions::format() const { return kv_format(type_k, type_v); }

std::string KvOptions::name() const {
  CandidateFormat way{
      .format = format(), .exact_first = first, .exact_recent = recent, .wide_layers = skip_layers};
  way.is_calibrated = !is_rotated(way.format.k) || calibration != "off";
  return way.name();
}

KvProtection KvOptions::protection(const ModelInfo& info) const {
  KvProtection protection;
  for (const int layer : skip_layers) {
    protection.wide_layers.push_back(layer < 0 ? layer + info.num_layers : layer);
  }
  protection.exact_first = first;
  protection.exact_recent = recent;
  return protection;
}

namespace {

constexpr const char* kTypesText =
    ": f32, f16, bf16, q8, q6, q4, tq8, tq4, tq3, tq2, tcq4, tcq3, tcq2, or a type of llama.cpp";
constexpr const char* kWayText =
    ", like tcq4:tcq3, one type for both, or a preset of vLLM; +first4, +recent64, +skip0/-1 and "
    "+nocalib at its end are --kv-first 4, --kv-recent 64, --kv-skip-layers 0,-1 and --kv-calib "
    "off";

// After --cache-type-k, --cache-type-v and --kv.
void add_quality_options(CLI::App& command, std::string& quality,
                         std::function<void(const std::string& type)> on_quant_mode) {
  CLI::Option* const types[] = {command.get_option("--kv"), command.get_option("--cache-type-k"),
                                command.get_option("--cache-type-v")};
  CLI::Option* const by_word =
      command
          .add_option("--kv-quality", quality,
                      "Types by what they cost: safe (tq8:tcq4), balanced (tcq4:tcq4), small "
                      "(tcq4:tcq3) or tiny (tcq3:tcq3), each with the first 4 tokens exact")
          ->check(CLI::IsMember({"safe", "balanced", "small", "tiny"}));
  CLI::Option* const by_mode = command.add_option_function<std::string>(
      "--paged-kv-quant,--paged-kv-quantization,--kv-quant", std::move(on_quant_mode),
      "Types by a mode of KV-Quant: off (f16), q8, q6 or q4");
  by_mode->transform(kv_quant_mode(*by_mode));
  by_word->excludes(by_mode);
  for (CLI::Option* const type : types) {
    by_word->excludes(type);
    by_mode->excludes(type);
  }
}

void add_extra_options(CLI::App& command, KvExtras& options) {
  options.first_option = command
                             .add_option("--kv-first", options.first,
                                         "Keep the first N tokens in f16 beside packed ones")
                             ->transform(integer_in(0, 1 << 20))
                             ->capture_default_str();
  options.recent_option =
      command
          .add_option("--kv-recent", options.recent,
                      "Let each token read the newest N tokens in f16, itself among them")
          ->transform(integer_in(0, 1 << 20))
          ->capture_default_str();
  options.skip_option =
      command
          .add_option("--kv-skip-layers", options.skip_layers,
                      "Layers that stay in f16, like 0,1,-1; negative: from the last")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->transform(integer_in(-(1 << 20), 1 << 20).description(""))
          ->type_name("LAYERS");
  add_calibration_options(command, options);
}

// What a name of --kv says. Where an option says it too, check() refuses.
void take_endings(KvOptions& options, const CandidateFormat& way) {
  options.endings = way;
  options.type_k = kv_code_name(way.format.k);
  options.type_v = kv_code_name(way.format.v);
  if (way.exact_first > 0) options.first = way.exact_first;
  if (way.exact_recent > 0) options.recent = way.exact_recent;
  if (!way.wide_layers.empty()) options.skip_layers = way.wide_layers;
  if (!way.is_calibrated) options.calibration = "off";
}

bool is_given(const CLI::Option* option) { return option != nullptr && option->count() > 0; }

}  // namespace

void add_kv_options(CLI::App& command, KvOptions& options) {
  const auto add_type = [&](const char* name, std::string& type, const char* what,
                            const CLI::Validator& validator) {
    return command.add_option(name, type, std::string(what) + kTypesText)
        ->transform(validator)
        ->capture_default_str();
  };
  CLI::Option* const k =
      add_type("--cache-type-k", options.type_k, "How keys are stored (also -ctk)", key_type());
  CLI::Option* const v =
      add_type("--cache-type-v", options.type_v, "How values are stored (also -ctv)", value_type());
  CLI::Option* const way = command.add_option_function<std::string>(
      "--kv",
      [&options](const std::string& name) {
        options.is_auto = name == "auto";
        if (!options.is_auto) take_endings(options, parse_candidate_format(name).value());
      },
      std::string("Both at once") + kWayText + "; auto: the widest that fit (--mem)");
  way->transform(kv_way_or_auto(*way))->excludes(k, v);
  options.way_option = way;
  add_quality_options(command, options.quality, [&options](const std::string& type) {
    options.type_k = options.type_v = type;
  });
  options.memory_option =
      command
          .add_option("--mem", options.memory,
                      "Memory for the cache that --kv auto may take, like 512MiB; the widest "
                      "types that fit -c are chosen")
          ->transform(byte_count().description(""))
          ->type_name("BYTES");
  add_extra_options(command, options);
}

void add_kv_options(CLI::App& command, KvListOptions& options) {
  const auto add_list = [&](const char* name, std::vector<std::string>& list,
                            const std::string& what) {
    return command.add_option(name, list, what)->delimiter(',')->allow_extra_args(false);
  };
  options.k_option = add_list("--cache-type-k", options.types_k, "How keys are stored (also -ctk)")
                         ->transform(key_type());
  options.v_option =
      add_list("--cache-type-v", options.types_v, "How values are stored (also -ctv)")
          ->transform(value_type());
  options.way_option =
      add_list("--kv", options.ways, std::string("Both at once, a list") + kWayText);
  options.way_option->transform(kv_way(*options.way_option))
      ->excludes(options.k_option, options.v_option);
  add_quality_options(command, options.quality,
                      [&options](const std::string& type) { options.ways = {type}; });
  add_extra_options(command, options);
}

void add_calibration_options(CLI::App& command, KvExtras& options) {
  options.calibration_option =
      command
          .add_option("--kv-calib", options.calibration,
                      "Calibration of tq and tcq keys: auto (made once per model), off, or a file "
                      "of kvik calibrate")
          ->type_name("auto|off|FILE")
          ->capture_default_str();
  options.frame_option = command
                             .add_option("--kv-frame", options.frame,
                                         "Tokens that share a calibrated frame: 128, 256 or 512")
                             ->check(CLI::IsMember({"128", "256", "512"}))
                             ->transform(integer_in(1, 512).description(""))
                             ->capture_default_str();
}

namespace {

// Those of the options that were given, as the user called them.
std::string names_given(std::initializer_list<const CLI::Option*> options) {
  std::string names;
  for (const CLI::Option* option : options) {
    if (is_given(option)) names += (names.empty() ? "" : " and ") + name_given(*option);
  }
  return names;
}

Status nothing_to_widen(const KvExtras& options, const std::string& formats) {
  const std::string names =
      names_given({options.first_option, options.recent_option, options.skip_option});
  return invalid_argument((names.empty() ? "the endings of --kv" : names) +
                          ": rows can be kept wider beside packed ones; with " + formats +
                          " they change nothing");
}

Status nothing_to_calibrate(const KvExtras& options, const std::string& keys) {
  return invalid_argument(names_given({options.calibration_option, options.frame_option}) +
                          ": only tq and tcq keys are calibrated; " + keys +
                          " keys have no calibration");
}

bool asks_for_calibration(const KvExtras& options) {
  return is_given(options.frame_option) ||
         (is_given(options.calibration_option) && options.calibration != "off");
}

// An ending of --kv beside the option that says the same.
Status check_said_once(const KvOptions& options) {
  const CandidateFormat& said = options.endings;
  for (const auto& [is_said, option, ending] :
       {std::tuple{said.exact_first > 0, options.first_option, "+first"},
        {said.exact_recent > 0, options.recent_option, "+recent"},
        {!said.wide_layers.empty(), options.skip_option, "+skip"}}) {
    if (!is_said || !is_given(option)) continue;
    return invalid_argument(format("%s and %s of %s say the same thing; leave one out",
                                   name_given(*option).c_str(), ending, said.name().c_str()));
  }
  return {};
}

Status check_frame(const KvExtras& options) {
  if (options.calibration != "off" || !is_given(options.frame_option)) return {};
  return invalid_argument(name_given(*options.frame_option) + " has no meaning with " +
                          name_given(*options.calibration_option) + " off");
}

bool is_any_packed(const KvFormat& format) { return is_packed(format.k) || is_packed(format.v); }

bool widens(const KvExtras& options) {
  return options.first > 0 || options.recent > 0 || !options.skip_layers.empty();
}

}  // namespace

Status check(const KvOptions& options) {
  if (is_given(options.memory_option) && !options.is_auto) {
    return invalid_argument(name_given(*options.memory_option) +
                            " has no meaning without --kv auto");
  }
  if (Status status = check_said_once(options); !status.ok()) return status;
  if (!options.endings.is_calibrated && asks_for_calibration(options)) {
    return invalid_argument("+nocalib leaves " +
                            names_given({options.calibration_option, options.frame_option}) +
                            " without a meaning");
  }
  if (options.is_auto || !options.quality.empty()) return {};
  const KvFormat format = options.format();
  if (!is_any_packed(format) && widens(options)) {
    return nothing_to_widen(options, name_of(format));
  }
  if (!is_rotated(format.k) && asks_for_calibration(options)) {
    return nothing_to_calibrate(options, std::string(kv_code_name(format.k)));
  }
  return check_frame(options);
}

namespace {

std::vector<CandidateFormat> formats_of(const KvListOptions& options,
                                        const std::vector<KvFormat>& otherwise) {
  std::vector<CandidateFormat> formats;
  for (const std::string& way : options.ways) {
    formats.push_back(parse_candidate_format(way).value());
  }
  if (!formats.empty()) return formats;
  if (!is_given(options.k_option) && !is_given(options.v_option)) {
    for (const KvFormat& format : otherwise) formats.push_back({.format = format});
    return formats;
  }
  for (const std::string& k : options.types_k) {
    for (const std::string& v : options.types_v) formats.push_back({.format = kv_format(k, v)});
  }
  return formats;
}

// The names of all formats, or of their keys.
std::string joined(const std::vector<KvOptions>& ways, bool keys_alone) {
  std::string text;
  for (const KvOptions& way : ways) {
    const std::string name = !keys_alone                 ? name_of(way.format())
                             : way.endings.is_calibrated ? way.type_k
                                                         : way.type_k + "+nocalib";
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace

Result<std::vector<KvOptions>> ways_of(const KvListOptions& options,
                                       const std::vector<KvFormat>& otherwise) {
  if (Status status = check_frame(options); !status.ok()) return status;
  std::vector<KvOptions> ways;
  if (!options.quality.empty()) {
    KvOptions way;
    static_cast<KvExtras&>(way) = options;
    way.quality = options.quality;
    ways.push_back(std::move(way));
    return ways;
  }
  bool is_one_packed = false;
  bool is_one_calibrated = false;
  for (const CandidateFormat& format : formats_of(options, otherwise)) {
    KvOptions way;
    if (is_any_packed(format.format)) static_cast<KvExtras&>(way) = options;
    take_endings(way, format);
    if (Status status = check_said_once(way); !status.ok()) return status;
    if (!is_any_packed(format.format) && widens(way)) {
      return nothing_to_widen(way, format.name());
    }
    is_one_packed |= is_any_packed(format.format);
    is_one_calibrated |= is_rotated(format.format.k) && format.is_calibrated;
    ways.push_back(std::move(way));
  }
  if (!is_one_packed && widens(options)) {
    return nothing_to_widen(options, joined(ways, false));
  }
  if (!is_one_calibrated && asks_for_calibration(options)) {
    return nothing_to_calibrate(options, joined(ways, true));
  }
  return ways;
}

Status resolve(KvOptions& options, const Model& model, ModelCacheOptions cache) {
  const int num_layers = model.info().num_layers;
  for (const int layer : options.skip_layers) {
    if (layer < -num_layers || layer >= num_layers) {
      return invalid_argument(format("%s %d: the model has layers 0 to %d",
                                     is_given(options.skip_option)
                                         ? name_given(*options.skip_option).c_str()
                                         : "+skip of --kv",
                                     layer, num_layers - 1));
    }
  }
  for (const KvClass& each : kClasses) {
    if (options.quality == each.name) take(options, each);
  }
  if (!options.is_auto) return {};
  return choose_by_memory(options, model, std::move(cache));
}

Status resolve(std::vector<KvOptions>& ways, const Model& model) {
  for (KvOptions& way : ways) {
    if (Status status = resolve(way, model, {}); !status.ok()) return status;
    Status status = check_keys(way.format().k, model.info().head_dim_k);
    if (status.ok()) status = check_values(way.format().v, model.info().head_dim_v);
    if (!status.ok()) return status;
  }
  return {};
}

std::string counted_text(const std::vector<KvOptions>& ways, const ModelInfo& info) {
  std::vector<std::string> lines;
  const auto add = [&lines](std::string line) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  };
  for (const KvOptions& way : ways) {
    if (way.first > 0) {
      add(format("+first%d: f16 rows of the first %d tokens beside the packed ones", way.first,
                 way.first));
    }
    if (way.recent > 0) {
      add(format("+recent%d: f16 rows of the newest %d tokens beside the packed ones", way.recent,
                 way.recent));
    }
    const std::vector<int> wide = way.protection(info).wide_layers;
    if (!wide.empty()) {
      std::string given, layers;
      for (size_t i = 0; i < wide.size(); ++i) {
        given += (i == 0 ? "" : "/") + std::to_string(way.skip_layers[i]);
        layers += (i == 0 ? "" : ", ") + std::to_string(wide[i]);
      }
      add("+skip" + given + ": f16 in the place of packed rows in layers " + layers);
    }
    if (is_rotated(way.format().k) && (is_given(way.calibration_option) ||
                                       is_given(way.frame_option) || way.calibration == "off")) {
      add("calibrated or not, keys take the same bytes");
    }
  }
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace kvik::cli
