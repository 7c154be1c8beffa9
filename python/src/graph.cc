#include "graph.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../kvik/mlx/core_functions.h"
#include "attention_call.h"
#include "errors.h"
#include "options.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvik::python {
namespace {

using Body = PyPaged::Body;
using SharedBody = std::shared_ptr<Body>;

int tell(const Status& status, KvikMessage* message) {
  if (status.ok()) return 0;
  const std::string& text = status.message();
  const size_t size = std::min(text.size(), sizeof message->text - 1);
  std::memcpy(message->text, text.data(), size);
  message->text[size] = '\0';
  return 1;
}

template <class View>
View view_of(const KvikArray& array) {
  View view(array.data,
            array.dtype == KVIK_F32   ? DType::f32
            : array.dtype == KVIK_F16 ? DType::f16
                                      : DType::bf16,
            {array.shape[0], array.shape[1], array.shape[2], array.shape[3]});
  for (size_t d = 0; d < 4; ++d) view.stride[d] = array.strides[d];
  return view;
}

void* share(void* handle) { return new SharedBody(*static_cast<SharedBody*>(handle)); }

void release(void* cache) { delete static_cast<SharedBody*>(cache); }

// Memory that the system refuses is the one exception that can come up below.
template <class Function>
int guarded(KvikMessage* message, Function&& f) noexcept {
  try {
    return tell(f(), message);
  } catch (...) {
    return tell(Status(StatusCode::out_of_memory, "no memory for a step of a paged cache"),
                message);
  }
}

int append(void* cache, int64_t position, const KvikArray* keys, const KvikArray* values,
           const char* phase, KvikMessage* message) {
  return guarded(message, [&]() -> Status {
    Body& body = **static_cast<SharedBody*>(cache);
    const std::lock_guard lock(body.mutex);
    if (body.cache.offset() != position) {
      return invalid_argument("rows for position " + std::to_string(position) +
                              " do not follow the " + std::to_string(body.cache.offset()) +
                              " rows of the cache, which took another way since");
    }
    return body.cache.update_without_fetch(view_of<ConstTensorView>(*keys),
                                           view_of<ConstTensorView>(*values),
                                           parse_paged_phase(phase));
  });
}

int attend(void* cache, const KvikAttention* attention, const KvikArray* queries,
           const KvikArray* out, KvikMessage* message) {
  return guarded(message, [&]() -> Status {
    PagedAttentionCall call;
    call.queries = view_of<ConstTensorView>(*queries);
    OwnedTensor copy;
    if (!fits_attention(call.queries)) {
      copy = row_major_copy(call.queries);
      call.queries = copy.view;
    }
    call.out = view_of<TensorView>(*out);
    call.scale = attention->scale;
    call.mask.kind = attention->causal ? AttentionMask::Kind::causal : AttentionMask::Kind::full;
    if (attention->sliding_window > 0) call.sliding_window = attention->sliding_window;
    call.sinks = {attention->sinks, static_cast<size_t>(attention->num_sinks)};
    call.phase = parse_paged_phase(attention->phase);
    call.kv_len = attention->kv_len;
    Body& body = **static_cast<SharedBody*>(cache);
    const std::lock_guard lock(body.mutex);
    const Result<bool> served = body.cache.paged_attention(call);
    if (!served.ok()) return served.status();
    return *served ? Status() : unsupported("attention was declined");
  });
}

constexpr KvikCoreFunctions kFunctions = {
    KVIK_CORE_FUNCTIONS_VERSION, sizeof(KvikCoreFunctions), &share, &release, &append, &attend};

// The call of a node, without data.
PagedAttentionCall sketch_of(const std::vector<int64_t>& shape, DType dtype, int64_t kv_len,
                             int64_t head_dim_v, std::optional<int64_t> sliding_window) {
  if (shape.size() != 4) throw nb::value_error("queries need 4 dimensions: [B, H, q_len, D]");
  PagedAttentionCall call;
  call.queries = ConstTensorView(nullptr, dtype, {shape[0], shape[1], shape[2], shape[3]});
  call.out = TensorView(nullptr, dtype, {shape[0], shape[1], shape[2], head_dim_v});
  call.sliding_window = sliding_window;
  call.kv_len = kv_len;
  return call;
}

}  // namespace

void add_graph_functions(nb::module_& module) {
  module.def(
      "_core_functions",
      [] {
        return nb::capsule(const_cast<KvikCoreFunctions*>(&kFunctions), KVIK_CORE_FUNCTIONS_NAME);
      },
      "Functions for compiled code of the package that runs without Python.");
}

void add_graph_members(nb::class_<PyPaged>& cls, const Process& process) {
  cls.def(
         "_handle",
         [](PyPaged& held) {
           return nb::capsule(new SharedBody(held.body), KVIK_PAGED_CACHE_NAME,
                              [](void* p) noexcept { release(p); });
         },
         "The cache for _core_functions.")
      .def(
          "_prepare",
          [](PyPaged& held, const std::vector<int64_t>& shape, nb::handle dtype_k,
             nb::handle dtype_v, int64_t position, int64_t num_rows) {
            if (shape.size() != 4) throw nb::value_error("a shape of rows is (B, H_kv, Dk, Dv)");
            const KvArrayShape rows{
                shape[0], shape[1], shape[2], shape[3], parse_dtype(dtype_k), parse_dtype(dtype_v)};
            check(
                locked(held, [&](PagedKVCache& c) { return c.prepare(rows, position, num_rows); }));
          },
          "shape"_a, "dtype_k"_a, "dtype_v"_a, "position"_a, "num_rows"_a,
          "Takes room for rows that are to come. Raises as update_without_fetch.")
      .def(
          "_would_serve",
          [process](PyPaged& held, const std::vector<int64_t>& shape, nb::handle given,
                    int64_t kv_len, std::optional<int64_t> sliding_window) {
            const DType dtype = parse_dtype(given);
            // Of nodes that ran without Python.
            process.fallbacks->warn();
            return take(locked(held, [&](PagedKVCache& c) -> Result<bool> {
              const std::optional<KvArrayShape> rows = c.shape();
              if (!rows) return false;
              return c.would_serve(
                  sketch_of(shape, dtype, kv_len, rows->head_dim_v, sliding_window));
            }));
          },
          "shape"_a, "dtype"_a, "kv_len"_a, "sliding_window"_a.none(),
          "Whether paged_attention would serve queries of this shape over kv_len rows. Raises as "
          "paged_attention.");
}

}  // namespace kvik::python
