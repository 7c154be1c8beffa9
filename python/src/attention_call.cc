#include "attention_call.h"

#include <nanobind/stl/string.h>

#include <array>
#include <cmath>

#include "arguments.h"
#include "errors.h"

namespace nb = nanobind;

namespace kvik::python {
namespace {

AttentionMask::Kind kind_of(const std::string& name) {
  if (name == "causal") return AttentionMask::Kind::causal;
  if (name == "full") return AttentionMask::Kind::full;
  throw nb::value_error(
      ("the mask \"" + name + "\" is none of \"causal\", \"full\", None").c_str());
}

}  // namespace

PagedPhase phase_of(const std::string& name) {
  const PagedPhase phase = parse_paged_phase(name);
  if (name == paged_phase_name(phase)) return phase;
  throw nb::value_error(("phase is \"" + name +
                         "\"; it may be prefill, decode_verify, ar_decode, postcommit or unknown")
                            .c_str());
}

std::vector<float> import_sinks(nb::handle sinks) {
  std::vector<float> logits;
  if (sinks.is_none()) return logits;
  const InputArray array = import_array(sinks, "sinks", 1);
  const DType dtype = array.view.dtype;
  const int64_t step = array.view.step(0) * dtype_bytes(dtype);
  for (int64_t i = 0; i < array.view.dim(0); ++i) {
    logits.push_back(load_float(dtype, array.view.data + i * step));
  }
  return logits;
}

void check_mask_and_sinks(const PagedAttentionCall& call, int64_t num_keys) {
  const ConstTensorView& q = call.queries;
  if (!call.sinks.empty() && static_cast<int64_t>(call.sinks.size()) != q.dim(1)) {
    throw nb::value_error(("sinks has " + std::to_string(call.sinks.size()) + " logits; " +
                           std::to_string(q.dim(1)) + " query heads need one each")
                              .c_str());
  }
  if (call.mask.kind != AttentionMask::Kind::array) return;
  const MaskView& mask = call.mask.array;
  const std::array<int64_t, 4> wanted = {q.dim(0), q.dim(1), q.dim(2), num_keys};
  std::string have;
  bool fits = true;
  for (size_t d = 0, at = 4 - static_cast<size_t>(mask.rank); at < 4; ++d, ++at) {
    have += (d == 0 ? "" : ", ") + std::to_string(mask.shape[d]);
    const bool may_be_one = mask.rank == 4 && at < 3;
    fits = fits && (mask.shape[d] == wanted[at] || (may_be_one && mask.shape[d] == 1));
  }
  if (!fits) {
    throw nb::value_error(("mask is [" + have + "]; " + std::to_string(q.dim(2)) +
                           " queries over " + std::to_string(num_keys) + " keys need [" +
                           std::to_string(q.dim(2)) + ", " + std::to_string(num_keys) +
                           "], behind batch rows and heads, or 1 of them, where there are 4 "
                           "dimensions")
                              .c_str());
  }
}

BoundCall::BoundCall(const CallArguments& arguments, NoMask no_mask,
                     std::optional<int64_t> head_dim_v)
    : queries_(for_attention(import_array(arguments.queries, "queries", 4))),
      sinks_(import_sinks(arguments.sinks)),
      out_(arguments.out) {
  const ConstTensorView& q = queries_.view;
  call_.queries = q;
  const double head_dim = static_cast<double>(q.dim(3));
  call_.scale = to_finite_float(
      arguments.scale.value_or(head_dim > 0 ? 1.0 / std::sqrt(head_dim) : 1.0), "scale");
  call_.softcap = to_finite_float(arguments.softcap, "softcap");
  call_.sinks = sinks_;
  call_.phase = arguments.phase;
  call_.sliding_window = arguments.sliding_window;
  if (arguments.impl_override) {
    call_.impl_override = take(parse_paged_route(*arguments.impl_override));
  }
  if (arguments.mask.is_none()) {
    call_.mask.kind =
        no_mask == NoMask::causal ? AttentionMask::Kind::causal : AttentionMask::Kind::full;
  } else if (nb::isinstance<nb::str>(arguments.mask)) {
    call_.mask.kind = kind_of(to_text(arguments.mask, "mask"));
  } else {
    mask_ = import_mask(arguments.mask);
    call_.mask = {AttentionMask::Kind::array, mask_->view};
  }
  if (!out_.is_none()) {
    given_out_ = import_writable(out_, "out", 4);
    call_.out = given_out_->view;
    const bool has_elements = call_.out.dim(0) * call_.out.dim(1) * call_.out.dim(2) > 0;
    if (has_elements && call_.out.dim(3) > 1 && call_.out.step(3) != 1) {
      throw nb::value_error("the last stride of out must be 1");
    }
    check_rows_apart(call_.out, "out");
    reads(q);
    if (mask_ && may_overlap(given_out_->view, mask_->view)) write_apart();
  } else if (head_dim_v) {
    own_out_ = make_tensor(q.dtype, {q.dim(0), q.dim(1), q.dim(2), *head_dim_v});
    call_.out = own_out_.view;
  }
}

void BoundCall::reads(const ConstTensorView& input) {
  if (given_out_ && may_overlap(given_out_->view, input)) write_apart();
}

void BoundCall::write_apart() {
  if (own_out_.owner != nullptr) return;
  const TensorView& out = given_out_->view;
  own_out_ = make_tensor(out.dtype, {out.dim(0), out.dim(1), out.dim(2), out.dim(3)});
  call_.out = own_out_.view;
}

nb::object BoundCall::result() const {
  if (!given_out_) {
    return export_array(own_out_.view, own_out_.owner, queries_.family.value_or(Bf16Family::own),
                        Access::writable);
  }
  if (own_out_.owner != nullptr) copy_elements(own_out_.view, given_out_->view);
  return out_;
}

}  // namespace kvik::python
