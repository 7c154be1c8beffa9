#include "attention_call.h"

#include <nanobind/stl/string.h>

#include <cmath>
#include <cstring>

#include "errors.h"

namespace nb = nanobind;

namespace kvik::python {
namespace {

float element(const ConstTensorView& view, int64_t i) {
  const std::byte* const at = view.data + i * view.step(0) * dtype_bytes(view.dtype);
  if (view.dtype == DType::f32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return view.dtype == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

AttentionMask::Kind kind_of(const std::string& name) {
  if (name == "causal") return AttentionMask::Kind::causal;
  if (name == "full") return AttentionMask::Kind::full;
  throw nb::value_error(
      ("the mask \"" + name + "\" is none of \"causal\", \"full\", None").c_str());
}

}  // namespace

std::vector<float> import_sinks(nb::handle sinks) {
  std::vector<float> logits;
  if (sinks.is_none()) return logits;
  const InputArray array = import_array(sinks, "sinks", 1);
  for (int64_t i = 0; i < array.view.dim(0); ++i) logits.push_back(element(array.view, i));
  return logits;
}

BoundCall::BoundCall(const CallArguments& arguments, NoMask no_mask,
                     std::optional<int64_t> head_dim_v)
    : queries_(for_attention(import_array(arguments.queries, "queries", 4))),
      sinks_(import_sinks(arguments.sinks)),
      out_(arguments.out) {
  const ConstTensorView& q = queries_.view;
  call_.queries = q;
  const double head_dim = static_cast<double>(q.dim(3));
  call_.scale =
      static_cast<float>(arguments.scale.value_or(head_dim > 0 ? 1.0 / std::sqrt(head_dim) : 1.0));
  call_.softcap = static_cast<float>(arguments.softcap);
  call_.sinks = sinks_;
  call_.phase = parse_paged_phase(arguments.phase);
  call_.sliding_window = arguments.sliding_window;
  if (arguments.impl_override) {
    call_.impl_override = take(parse_paged_route(*arguments.impl_override));
  }
  if (arguments.mask.is_none()) {
    call_.mask.kind =
        no_mask == NoMask::causal ? AttentionMask::Kind::causal : AttentionMask::Kind::full;
  } else if (nb::isinstance<nb::str>(arguments.mask)) {
    call_.mask.kind = kind_of(nb::cast<std::string>(arguments.mask));
  } else {
    mask_ = import_mask(arguments.mask);
    call_.mask = {AttentionMask::Kind::array, mask_->view};
  }
  if (!out_.is_none()) {
    given_out_ = import_writable(out_, "out", 4);
    call_.out = given_out_->view;
    if (call_.out.step(3) != 1 && call_.out.dim(3) > 1) {
      throw nb::value_error("the last stride of out must be 1");
    }
  } else if (head_dim_v) {
    own_out_ = make_tensor(q.dtype, {q.dim(0), q.dim(1), q.dim(2), *head_dim_v});
    call_.out = own_out_.view;
  }
}

nb::object BoundCall::result() const {
  if (!out_.is_none()) return out_;
  return export_array(own_out_.view, own_out_.owner, queries_.family.value_or(Bf16Family::own),
                      true);
}

}  // namespace kvik::python
