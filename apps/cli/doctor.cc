// kvik doctor: what this machine offers, measured where that is possible.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "commands.h"
#include "kvik/core/buffer.h"
#include "kvik/core/cpu_features.h"
#include "kvik/core/cpu_isa.h"
#include "kvik/core/read_rate.h"
#include "kvik/core/thread_team.h"
#include "options.h"

namespace kvik::cli {
namespace {

using nlohmann::ordered_json;

struct DoctorOptions {
  std::string output;
  bool no_measure = false;
};

// Read this much: several times a large cache, unless memory is short.
constexpr int64_t kReadBytes = int64_t{512} << 20;

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The chosen word of "always [madvise] never"; empty if the system does not say.
std::string chosen_word(const std::string& line) {
  const size_t begin = line.find('[');
  const size_t end = line.find(']', begin);
  return end == std::string::npos ? "" : line.substr(begin + 1, end - begin - 1);
}

ordered_json limit(int resource) {
  rlimit value = {};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &value) != 0) return nullptr;
  if (value.rlim_cur == RLIM_INFINITY) return "unlimited";
  return static_cast<int64_t>(value.rlim_cur);
}

// The best of three passes over memory, in GB/s, or why there is none.
Result<double> read_rate(const Buffer& buffer, int num_threads) {
  Result<ThreadTeam> team = ThreadTeam::create(num_threads);
  if (!team.ok()) return team.status();
  ReadRate rate(*team, buffer);
  return std::max({rate.measure(), rate.measure(), rate.measure()});
}

ordered_json measure() {
  ordered_json rates = ordered_json::object();
  const int64_t bytes = std::min(kReadBytes, available_memory_bytes() / 4);
  Result<Buffer> buffer = Buffer::reserve(bytes);
  Status status = buffer.ok() ? buffer->commit(bytes) : buffer.status();
  if (!status.ok()) return {{"unknown_because", status.message()}};
  // Fresh pages may all be the one zero page; written ones are not.
  for (int64_t i = 0; i < bytes; i += 64) buffer->data()[i] = static_cast<std::byte>(i >> 6);
  Progress progress;
  progress.show("measuring the read rate ...");
  for (const int threads : {1, 2, num_usable_processors()}) {
    if (threads > num_usable_processors()) continue;
    const std::string key = std::to_string(threads);
    if (!rates.contains(key)) rates[key] = read_rate(*buffer, threads).value();
  }
  return {{"bytes", bytes}, {"gb_per_second_by_threads", rates}};
}

ordered_json examine(const DoctorOptions& options) {
  const CpuFeatures features = detect_cpu_features();
  std::vector<std::string> sets;
  for (const CpuIsa isa : available_cpu_isas(features)) sets.emplace_back(cpu_isa_name(isa));
  const int64_t available = available_memory_bytes();
  ordered_json report = {
      {"version", KVIK_VERSION},
      {"processor", describe(features)},
      {"usable_processors", num_usable_processors()},
      {"instruction_sets", sets},
      {"kernel_set", "exact-" + sets.front()},
      {"packed_kernel_set", "fast-" + sets.front()},
      {"memory_available_bytes",
       available == INT64_MAX ? ordered_json(nullptr) : ordered_json(available)},
      {"page_bytes", sysconf(_SC_PAGESIZE)},
      {"transparent_huge_pages",
       chosen_word(first_line("/sys/kernel/mm/transparent_hugepage/enabled"))},
      {"huge_page_defrag", chosen_word(first_line("/sys/kernel/mm/transparent_hugepage/defrag"))},
      {"overcommit", first_line("/proc/sys/vm/overcommit_memory")},
      {"limits",
       {{"address_space", limit(RLIMIT_AS)},
        {"locked_memory", limit(RLIMIT_MEMLOCK)},
        {"open_files", limit(RLIMIT_NOFILE)}}}};
  if (!options.no_measure) report["read_rate"] = measure();
  return report;
}

// What may slow a cache down or make it fail, with the remedy.
std::vector<std::string> advice(const ordered_json& report) {
  std::vector<std::string> lines;
  if (report["transparent_huge_pages"] == "never" || report["transparent_huge_pages"] == "") {
    lines.emplace_back(
        "huge pages are off: as root, "
        "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`");
  }
  if (report["limits"]["address_space"] != "unlimited") {
    lines.emplace_back(
        "address space is limited: caches reserve it for their whole context; `ulimit -v "
        "unlimited`");
  }
  if (report["overcommit"] == "2") {
    lines.emplace_back(
        "the system never overcommits: reserving a large context may fail; "
        "`sysctl vm.overcommit_memory=0`");
  }
  if (report["kernel_set"] == "exact-scalar") {
    lines.emplace_back("no vector kernels for this processor: everything will be slow");
  }
  return lines;
}

std::string to_text(const ordered_json& report) {
  const auto limit_text = [](const ordered_json& value) {
    return value.is_number()   ? bytes_text(value)
           : value.is_string() ? value.get<std::string>()
                               : "?";
  };
  std::string sets;
  for (const auto& set : report["instruction_sets"]) sets += " " + set.get<std::string>();
  std::string text = "kvik " + report["version"].get<std::string>() + "\n";
  text += "processor         " + report["processor"].get<std::string>() + "\n";
  text += format("usable            %d processors\n", report["usable_processors"].get<int>());
  text += "instruction sets " + sets + "\n";
  text += "kernel set        " + report["kernel_set"].get<std::string>() + ", for packed rows " +
          report["packed_kernel_set"].get<std::string>() + "\n";
  if (report.contains("read_rate")) {
    const ordered_json& rate = report["read_rate"];
    if (rate.contains("unknown_because")) {
      text += "read rate         unknown: " + rate["unknown_because"].get<std::string>() + "\n";
    } else {
      for (const auto& [threads, gb] : rate["gb_per_second_by_threads"].items()) {
        text += format("read rate         %.1f GB/s with %s thread%s\n", gb.get<double>(),
                       threads.c_str(), threads == "1" ? "" : "s");
      }
    }
  }
  text += "memory available  " + limit_text(report["memory_available_bytes"]) + "\n";
  text += format("huge pages        %s (defrag %s), pages of %d bytes\n",
                 report["transparent_huge_pages"].get<std::string>().c_str(),
                 report["huge_page_defrag"].get<std::string>().c_str(),
                 report["page_bytes"].get<int>());
  text += "limits            address space " + limit_text(report["limits"]["address_space"]) +
          ", locked memory " + limit_text(report["limits"]["locked_memory"]) +
          ", overcommit mode " + report["overcommit"].get<std::string>() + "\n";
  for (const std::string& line : advice(report)) text += "advice            " + line + "\n";
  return text;
}

int doctor(const DoctorOptions& options) {
  ordered_json report = examine(options);
  report["advice"] = advice(report);
  Output out;
  if (options.output == "json") {
    out.write_json(report);
  } else {
    out.write(to_text(report));
  }
  return out.finish();
}

}  // namespace

Command add_doctor(CLI::App& program) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = program.add_subcommand("doctor", "Show what this machine offers");
  command->add_flag("--no-measure", options->no_measure, "Do not measure the read rate");
  add_output_option(*command, options->output, {"text", "json"});
  return {command, [options] { return doctor(*options); }};
}

}  // namespace kvik::cli
