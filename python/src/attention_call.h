// The arguments of an attention call from Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "kvik/layer_cache/paged_kv_cache.h"

namespace kvik::python {

// One logit per query head: any array of rank 1 that arrays can hold.
std::vector<float> import_sinks(nanobind::handle sinks);

// What mask=None stands for.
enum class NoMask : uint8_t { causal, full };

struct CallArguments {
  ArrayLike queries;
  std::optional<double> scale;  // none: 1 / sqrt(head_dim_k)
  nanobind::object mask;        // None, "causal", "full" or an array
  std::optional<int64_t> sliding_window;
  std::optional<std::string> impl_override;
  nanobind::object sinks;  // None or an array
  double softcap = 0;
  std::string phase = "unknown";
  nanobind::object out;  // None: a new array of the queries' dtype
};

// A PagedAttentionCall with all that it borrows.
class BoundCall {
 public:
  // Throws ValueError and TypeError for what is no such call. `head_dim_v` is that of the cache,
  // none while it holds nothing (then there is nothing to write to).
  BoundCall(const CallArguments& arguments, NoMask no_mask, std::optional<int64_t> head_dim_v);

  const PagedAttentionCall& call() const { return call_; }
  TensorView out() const { return call_.out; }
  // The given `out`, or the new array.
  nanobind::object result() const;

 private:
  InputArray queries_;
  std::optional<InputMask> mask_;
  std::vector<float> sinks_;
  std::optional<WritableArray> given_out_;
  OwnedTensor own_out_;
  nanobind::object out_;
  PagedAttentionCall call_;
};

}  // namespace kvik::python
