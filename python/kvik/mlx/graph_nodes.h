// What the nodes of MLX's graph share.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "mlx/array.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"
#include "mlx/utils.h"

namespace nb = nanobind;
namespace mx = mlx::core;

namespace {

constexpr const char* kNoTransform =
    "kvik: a cache cannot be updated or attended to inside mx.compile, mx.grad or mx.vmap";

void refuse_tracer(const mx::array& array) {
  if (array.is_tracer()) throw std::invalid_argument(kNoTransform);
}

// An array whose content a Python function gives when, and only if, it is evaluated.
class Deferred : public mx::Primitive {
 public:
  Deferred(mx::Stream stream, nb::callable make)
      : Primitive(stream),
        make_(new nb::callable(std::move(make)), [](nb::callable* held) { release(held); }) {}

  // The function runs here, on the thread that evaluates, and not on the stream's. The inputs are
  // the rows that must have been written before.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    if (!inputs.empty()) mx::synchronize(stream());
    const nb::gil_scoped_acquire gil;
    const auto made = nb::cast<mx::array>((*make_)());
    if (made.shape() != outputs[0].shape() || made.dtype() != outputs[0].dtype() ||
        !made.is_available()) {
      throw std::runtime_error("kvik: rows that were to be read later are no longer there");
    }
    outputs[0].copy_shared_buffer(made);
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("kvik: rows are read on the CPU only");
  }
  const char* name() const override { return "KvikDeferred"; }

 private:
  // Graphs are dropped on any thread, while the interpreter ends, and after it ended.
  static void release(nb::callable* held) {
    if (Py_IsInitialized() != 0) {
      const nb::gil_scoped_acquire gil;
      delete held;
    } else if (current_thread_state() != nullptr) {
      delete held;  // ending, on its own thread
    }
  }
  static PyThreadState* current_thread_state() {
#if PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked();
#else
    return _PyThreadState_UncheckedGet();
#endif
  }

  std::shared_ptr<nb::callable> make_;
};

// `make` takes nothing and returns an evaluated array of this shape and dtype; it is called after
// `after` has been evaluated.
mx::array deferred(const std::vector<int>& shape, mx::Dtype dtype, nb::callable make,
                   const std::optional<mx::array>& after) {
  const mx::Stream stream = mx::to_stream(mx::StreamOrDevice{}, mx::Device::cpu);
  std::vector<mx::array> inputs;
  if (after) inputs.push_back(*after);
  return mx::array(mx::Shape(shape.begin(), shape.end()), dtype,
                   std::make_shared<Deferred>(stream, std::move(make)), std::move(inputs));
}

}  // namespace
