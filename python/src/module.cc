// The module kvik._core.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arguments.h"
#include "caches.h"
#include "errors.h"
#include "graph.h"
#include "kvik/core/cpu_features.h"
#include "kvik/core/cpu_isa.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvik::python {
namespace {

nb::dict cpu_info(const Process& process) {
  const CpuFeatures features = detect_cpu_features();
  std::vector<std::string> names;
  for (const CpuIsa isa : available_cpu_isas(features)) names.emplace_back(cpu_isa_name(isa));
  nb::dict info;
  info["instruction_set"] = names.front();
  info["instruction_sets"] = names;
  info["backend"] = std::string(process.backend->name());
  info["features"] = describe(features);
  info["num_threads"] = process.backend->num_threads();
  return info;
}

}  // namespace

void add_process(nb::module_& module, const Process& process) {
  def_function(
      module, "def set_num_threads(num_threads: int) -> None",
      [process](const Arguments& a) {
        const int64_t num_threads = a.integer("num_threads");
        if (num_threads < 1 || num_threads > 1024) {
          throw nb::value_error(
              ("num_threads is " + std::to_string(num_threads) + "; it may be 1 to 1024").c_str());
        }
        check(process.backend->set_num_threads(static_cast<int>(num_threads)));
      },
      "Threads that attention and writing use from the next call on, the calling one "
      "included; 1 to 1024. Before: KVIK_NUM_THREADS, else the processors that this process "
      "may use. Results do not depend on it.\n\nRaises ValueError, MemoryError where the "
      "system refuses threads.");
  def_function(
      module, "def get_num_threads() -> int",
      [process](const Arguments&) { return process.backend->num_threads(); },
      "Threads that attention and writing use.");
  def_function(
      module, "def cpu_info() -> dict[str, object]",
      [process](const Arguments&) { return cpu_info(process); },
      "instruction_set: that of the kernels; instruction_sets: all that can run here, best "
      "first; backend: its name; features: those of the processor; num_threads.");
  nb::module_::import_("os").attr("register_at_fork")(
      "after_in_child"_a = nb::cpp_function([process] { process.backend->forget_threads(); }));
}

}  // namespace kvik::python

NB_MODULE(_core, module) {
  using namespace kvik::python;
  module.doc() = "The compiled part of kvik; import kvik instead.";
  module.attr("__version__") = KVIK_VERSION;
  const Process process;
  add_errors(module);
  add_process(module, process);
  add_tail_owned(module, process);
  add_block_owned(module, process);
  add_paged(module, process);
  add_attend(module, process);
  add_formats(module);
  add_graph_functions(module);
  add_install(module, process);
}
