// Options that arrive as names, numbers, dicts or None.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>

#include "kvik/layer_cache/causal_mask.h"
#include "kvik/layer_cache/paged_options.h"
#include "process.h"

namespace kvik::python {

// A dtype by its name, or anything whose text ends in one: numpy.float16, mlx.core.bfloat16, "f32".
// Throw ValueError that lists the names.
DType parse_dtype(nanobind::handle dtype);
MaskType parse_mask_type(nanobind::handle dtype);

// None and modes that mean off: none. A mode such as "q4", or a dict with mode (q8 unless given)
// and dtype (of the mirror). Unknown keys are ValueErrors.
std::optional<KvQuantConfig> parse_kv_quant(nanobind::handle config);
// None and False: none. A dict with k_quant (q8_0 unless given), v_quant (q3_0) and dtype (of the
// mirror).
std::optional<TurboQuantConfig> parse_turboquant(nanobind::handle config);

// What installing reads from the environment beyond what constructing does.
enum class Reads : uint8_t { of_constructor, of_installer };

// The options of a paged cache by their names in Python; those that are missing or None are read
// from the environment (docs/python.md), else they have their defaults. Throws ValueError,
// TypeError for a name that is no option.
PagedKVCacheOptions paged_options(const Process& process, const nanobind::dict& given, Reads reads);
// The keyword arguments that make a cache with these options, whatever the environment says. Text,
// numbers, bools and dicts of text only.
nanobind::dict keywords_of(const PagedKVCacheOptions& options);

// `current` with those options changed that are given and not None.
PagedKVCacheOptions changed_options(const PagedKVCacheOptions& current,
                                    const nanobind::dict& given);

}  // namespace kvik::python
