// The module of nodes of MLX's lazy graph.
//
// Compiled by `python -m kvik.mlx.build` against the installed MLX; CPU back end, Linux.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>

#include "graph_nodes.h"
#include "mlx/allocator.h"
#include "mlx/version.h"
#include "paged_nodes.h"
#include "tail_nodes.h"

namespace {

// Whether `array` is `of`, perhaps behind mx.depends: the same rows in the same memory.
bool is_same_rows(const mx::array& array, const mx::array& of) {
  const mx::array* at = &array;
  while (at->id() != of.id()) {
    if (!at->has_primitive() || std::strcmp(at->primitive().name(), "Depends") != 0) return false;
    at = &at->inputs()[static_cast<size_t>(at->sibling_position())];
  }
  return true;
}

// Whether this MLX keeps CPU buffers as this file assumes: a byte count (at least what was asked
// for: buffers are used again), then the data.
bool has_expected_buffers() {
  constexpr size_t kBytes = 4096;
  mx::allocator::Data data = mx::allocator::malloc(kBytes);
  mx::allocator::Buffer buffer = data.buffer();
  size_t bytes = 0;
  std::memcpy(&bytes, buffer.ptr(), sizeof bytes);
  return static_cast<char*>(buffer.raw_ptr()) ==
             static_cast<char*>(buffer.ptr()) + sizeof(size_t) &&
         bytes >= kBytes && mx::allocator::allocator().size(buffer) == bytes;
}

}  // namespace

NB_MODULE(KVIK_MODULE, m) {
  m.attr("built_for") = nb::make_tuple(MLX_VERSION_MAJOR, MLX_VERSION_MINOR, MLX_VERSION_PATCH);
  m.attr("running_with") = mx::version();
  m.def("has_expected_buffers", &has_expected_buffers);
  m.def("is_same_rows", &is_same_rows, nb::arg("array"), nb::arg("of"));
  m.def("deferred", &deferred, nb::arg("shape"), nb::arg("dtype"), nb::arg("make"),
        nb::arg("after").none() = nb::none());
  nb::class_<TailRegion>(m, "TailRegion")
      .def(nb::init<const mx::array&, int64_t, int64_t>(), nb::arg("like"), nb::arg("min_rows"),
           nb::arg("max_rows"))
      .def_prop_ro("max_rows", &TailRegion::max_rows)
      .def_prop_ro("visible_rows", &TailRegion::visible_rows)
      .def_prop_ro("resident_bytes", &TailRegion::resident_bytes)
      .def("populate", &TailRegion::populate, nb::arg("begin"), nb::arg("end"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("append", &TailRegion::append, nb::arg("rows"), nb::arg("before").none(),
           nb::arg("position"))
      .def("view", &TailRegion::view, nb::arg("rows"));
  nb::class_<PagedNodes>(m, "PagedNodes")
      .def(nb::init<nb::capsule, nb::capsule>(), nb::arg("functions"), nb::arg("handle"))
      .def_static("refuse_tracers", &PagedNodes::refuse_tracers, nb::arg("one"), nb::arg("other"))
      .def("append", &PagedNodes::append, nb::arg("keys"), nb::arg("values"), nb::arg("position"),
           nb::arg("phase"))
      .def("attend", &PagedNodes::attend, nb::arg("queries"), nb::arg("head_dim_v"),
           nb::arg("scale"), nb::arg("causal"), nb::arg("sliding_window"), nb::arg("kv_len"),
           nb::arg("sinks"), nb::arg("phase"))
      .def_prop_ro("last", &PagedNodes::last)
      .def_prop_ro("busy", &PagedNodes::busy)
      .def("settle", &PagedNodes::settle, nb::call_guard<nb::gil_scoped_release>())
      .def("drop", &PagedNodes::drop, nb::call_guard<nb::gil_scoped_release>())
      .def("take_error", &PagedNodes::take_error);
}
