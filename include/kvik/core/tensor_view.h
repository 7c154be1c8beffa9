// Borrowed views of strided arrays.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kvik/core/check.h"
#include "kvik/core/dtype.h"

namespace kvik {

enum class Device : uint8_t { cpu, cuda };

// Up to four dimensions; strides count elements, not bytes. Owns nothing: the memory must outlive
// the view. Byte is std::byte or const std::byte.
template <class Byte>
struct BasicTensorView {
  static constexpr int kMaxRank = 4;

  Byte* data = nullptr;
  DType dtype = DType::f32;
  Device device = Device::cpu;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};

  BasicTensorView() = default;

  // Row-major, without gaps. Requires: at most four dimensions, none negative.
  BasicTensorView(std::conditional_t<std::is_const_v<Byte>, const void*, void*> pointer, DType type,
                  std::initializer_list<int64_t> dims)
      : data(static_cast<Byte*>(pointer)), dtype(type), rank(static_cast<int>(dims.size())) {
    KVIK_CHECK(dims.size() <= kMaxRank, "a tensor view has at most four dimensions");
    int i = 0;
    for (const int64_t dim : dims) shape[static_cast<size_t>(i++)] = dim;
    int64_t step = 1;
    for (int d = rank - 1; d >= 0; --d) {
      stride[static_cast<size_t>(d)] = step;
      // A wrapped product is only ever a stride of a view that the checked door then refuses.
      step = static_cast<int64_t>(static_cast<uint64_t>(step) *
                                  static_cast<uint64_t>(shape[static_cast<size_t>(d)]));
    }
  }

  // A read-only view of the same memory.
  operator BasicTensorView<const std::byte>() const  // NOLINT: widening is implicit, as for T*
      requires(!std::is_const_v<Byte>) {
    BasicTensorView<const std::byte> view;
    view.data = data;
    view.dtype = dtype;
    view.device = device;
    view.rank = rank;
    view.shape = shape;
    view.stride = stride;
    return view;
  }

  int64_t dim(int d) const { return shape[static_cast<size_t>(d)]; }
  int64_t step(int d) const { return stride[static_cast<size_t>(d)]; }

  // Address of element (i, j, 0, ...); null where there is no memory, as a tensor without elements
  // may have none. Requires: indices in range.
  Byte* at(int64_t i, int64_t j = 0) const {
    return data == nullptr ? nullptr : data + (i * stride[0] + j * stride[1]) * dtype_bytes(dtype);
  }
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

}  // namespace kvik
