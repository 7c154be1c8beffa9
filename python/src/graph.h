// What lets nodes of another library's graph use paged caches: see kvik/mlx/core_functions.h.
#pragma once

#include "caches.h"

namespace kvik::python {

void add_graph_functions(nanobind::module_& module);
// Members of PagedKVCache that build such nodes; private to the package.
void add_graph_members(nanobind::class_<PyPaged>& cls, const Process& process);

}  // namespace kvik::python
