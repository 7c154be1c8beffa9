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
  nanobind::object queries;
  std::optional<double> scale;  // none: 1 / sqrt(head_dim_k)
  nanobind::object mask;        // None, "causal", "full" or an array
  std::optional<int64_t> sliding_window;
  std::optional<std::string> impl_override;
  nanobind::object sinks;  // None or an array
  double softcap = 0;
  PagedPhase phase = PagedPhase::unknown;
  nanobind::object out;  // None: a new array of the queries' dtype
};

// Throws ValueError that lists the names for another one.
PagedPhase phase_of(const std::string& name);

// Throws ValueError for a mask or sinks that do not fit a call over num_keys keys: for calls that
// have nothing to compute, and so come to no door below that looks.
void check_mask_and_sinks(const PagedAttentionCall& call, int64_t num_keys);

// A PagedAttentionCall with all that it borrows.
class BoundCall {
 public:
  // Throws ValueError and TypeError for what is no such call. `head_dim_v` is that of the cache,
  // none while it holds nothing (then there is nothing to write to).
  BoundCall(const CallArguments& arguments, NoMask no_mask, std::optional<int64_t> head_dim_v);

  const PagedAttentionCall& call() const { return call_; }
  // To be called for every further array that the call reads. Attention writes rows before it has
  // read all others: an `out` that shares memory with an input is written at the end, from a copy.
  void reads(const ConstTensorView& input);
  // The given `out`, or the new array. To be called once, when attention has run.
  nanobind::object result() const;

 private:
  void write_apart();

  InputArray queries_;
  std::optional<InputMask> mask_;
  std::vector<float> sinks_;
  std::optional<WritableArray> given_out_;
  OwnedTensor own_out_;  // the new array, or what becomes the given one
  nanobind::object out_;
  PagedAttentionCall call_;
};

}  // namespace kvik::python
