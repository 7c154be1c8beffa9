#include "arrays.h"

#include <nanobind/stl/string.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "errors.h"
#include "kvik/core/checked_math.h"

namespace nb = nanobind;

namespace kvik::python {
namespace {

using Code = nb::dlpack::dtype_code;
using AnyArray = nb::ndarray<nb::ro>;
using AnyWritable = nb::ndarray<>;

constexpr int kDlpackCpu = 1;

bool is_numpy(nb::handle object) {
  return nb::isinstance(object, nb::module_::import_("numpy").attr("ndarray"));
}

// NumPy exports no array of a dtype that is not its own, so those of ml_dtypes go as their bits.
nb::object bits_of_ml_dtypes(nb::handle object) {
  if (!is_numpy(object)) return {};
  if (nb::cast<std::string>(object.attr("dtype").attr("name")) != "bfloat16") return {};
  return object.attr("view")("uint16");
}

// What an import needs to know of an array beyond DLPack.
template <class Imported>
struct Found {
  Imported array;
  bool is_ml_dtypes = false;
};

template <class Imported>
Found<Imported> find_array(nb::handle object, const char* name) {
  Found<Imported> found;
  if (nb::try_cast<Imported>(object, found.array, false)) return found;
  const nb::object bits = bits_of_ml_dtypes(object);
  if (bits.is_valid() && nb::try_cast<Imported>(bits, found.array, false)) {
    found.is_ml_dtypes = true;
    return found;
  }
  AnyArray readable;
  if (bits.is_valid() || nb::try_cast<AnyArray>(object, readable, false)) {
    throw nb::value_error((std::string(name) + " is read-only").c_str());
  }
  if (is_numpy(object)) {
    const auto dtype = nb::cast<std::string>(nb::str(object.attr("dtype")));
    throw nb::value_error(
        (std::string(name) + " has dtype " + dtype + "; use float32, float16 or bfloat16").c_str());
  }
  throw nb::type_error((std::string(name) +
                        " must be an array of NumPy or one with __dlpack__, not " +
                        nb::type_name(object.type()).c_str())
                           .c_str());
}

std::string dtype_text(nb::dlpack::dtype dtype) {
  std::string kind = "type " + std::to_string(dtype.code) + " of ";
  if (dtype.code == static_cast<uint8_t>(Code::Float)) kind = "float";
  if (dtype.code == static_cast<uint8_t>(Code::Int)) kind = "int";
  if (dtype.code == static_cast<uint8_t>(Code::UInt)) kind = "uint";
  if (dtype.code == static_cast<uint8_t>(Code::Bool)) kind = "bool";
  return kind + std::to_string(dtype.bits) + (kind.back() == ' ' ? " bits" : "");
}

bool is_type(nb::dlpack::dtype dtype, Code code, int bits) {
  return dtype.code == static_cast<uint8_t>(code) && dtype.bits == bits && dtype.lanes == 1;
}

template <class Imported>
DType dtype_of(const Found<Imported>& found, const char* name) {
  const nb::dlpack::dtype dtype = found.array.dtype();
  if (found.is_ml_dtypes || is_type(dtype, Code::Bfloat, 16)) return DType::bf16;
  if (is_type(dtype, Code::Float, 32)) return DType::f32;
  if (is_type(dtype, Code::Float, 16)) return DType::f16;
  throw nb::value_error(
      (std::string(name) + " has dtype " + dtype_text(dtype) + "; use float32, float16 or bfloat16")
          .c_str());
}

template <class Imported>
void check_device(const Imported& array, const char* name) {
  if (array.device_type() == kDlpackCpu) return;
  throw nb::value_error((std::string(name) + " is in the memory of another device (DLPack type " +
                         std::to_string(array.device_type()) + "); move it to the CPU first")
                            .c_str());
}

template <class Imported, class View>
void take_shape(const Imported& array, View& view) {
  int64_t step = 1;
  for (size_t d = array.ndim(); d-- > 0;) {
    view.shape[d] = static_cast<int64_t>(array.shape(d));
    view.stride[d] = array.stride_ptr() == nullptr ? step : array.stride(d);
    step *= view.shape[d];
  }
}

template <class View, class Imported>
View view_of(const Found<Imported>& found, const char* name, int rank) {
  check_device(found.array, name);
  View view;
  view.dtype = dtype_of(found, name);
  if (static_cast<int>(found.array.ndim()) != rank) {
    throw nb::value_error((std::string(name) + " has " + std::to_string(found.array.ndim()) +
                           " dimensions; it needs " + std::to_string(rank))
                              .c_str());
  }
  view.rank = rank;
  take_shape(found.array, view);
  return view;
}

// What holds memory (the handle of an imported array, an owner), as a Python object.
template <class Holder>
nb::object keep(const Holder& holder) {
  auto* const held = new Holder(holder);
  return nb::capsule(held, [](void* p) noexcept { delete static_cast<Holder*>(p); });
}

}  // namespace

InputArray import_array(nb::handle object, const char* name, int rank) {
  const Found<AnyArray> found = find_array<AnyArray>(object, name);
  InputArray array;
  array.view = view_of<ConstTensorView>(found, name, rank);
  array.view.data = static_cast<const std::byte*>(static_cast<const void*>(found.array.data()));
  array.keep = keep(found.array);
  if (array.view.dtype == DType::bf16) {
    array.family = found.is_ml_dtypes ? Bf16Family::ml_dtypes : Bf16Family::own;
  }
  return array;
}

WritableArray import_writable(nb::handle object, const char* name, int rank) {
  const Found<AnyWritable> found = find_array<AnyWritable>(object, name);
  WritableArray array;
  array.view = view_of<TensorView>(found, name, rank);
  array.view.data = static_cast<std::byte*>(static_cast<void*>(found.array.data()));
  array.keep = keep(found.array);
  return array;
}

bool fits_attention(const ConstTensorView& view) {
  bool fits = view.dim(3) <= 1 || view.step(3) == 1;
  for (int d = 0; d < 3; ++d) fits = fits && (view.dim(d) <= 1 || view.step(d) > 0);
  return fits;
}

OwnedTensor row_major_copy(const ConstTensorView& from) {
  OwnedTensor copy = make_tensor(from.dtype, {from.dim(0), from.dim(1), from.dim(2), from.dim(3)});
  const auto size = static_cast<size_t>(dtype_bytes(from.dtype));
  std::byte* to = copy.view.data;
  for (int64_t b = 0; b < from.dim(0); ++b) {
    for (int64_t h = 0; h < from.dim(1); ++h) {
      for (int64_t t = 0; t < from.dim(2); ++t) {
        for (int64_t d = 0; d < from.dim(3); ++d, to += size) {
          const int64_t offset = t * from.step(2) + d * from.step(3);
          std::memcpy(to, from.at(b, h) + offset * static_cast<int64_t>(size), size);
        }
      }
    }
  }
  return copy;
}

InputArray for_attention(InputArray array) {
  if (fits_attention(array.view)) return array;
  OwnedTensor copy = row_major_copy(array.view);
  array.view = copy.view;
  array.keep = keep(copy.owner);
  return array;
}

InputMask import_mask(nb::handle object) {
  const Found<AnyArray> found = find_array<AnyArray>(object, "mask");
  check_device(found.array, "mask");
  InputMask mask;
  if (is_type(found.array.dtype(), Code::Bool, 8)) {
    mask.view.type = MaskType::boolean;
  } else {
    mask.view.type = mask_type_of(dtype_of(found, "mask"));
  }
  const size_t rank = found.array.ndim();
  if (rank < 2 || rank > 4) {
    throw nb::value_error(
        ("mask has " + std::to_string(rank) + " dimensions; it needs 2 to 4").c_str());
  }
  if (rank == 3) {
    ConstTensorView view;
    take_shape(found.array, view);
    mask.view.shape = {1, view.shape[0], view.shape[1], view.shape[2]};
    mask.view.stride = {0, view.stride[0], view.stride[1], view.stride[2]};
    mask.view.rank = 4;
  } else {
    take_shape(found.array, mask.view);
    mask.view.rank = static_cast<int>(rank);
  }
  mask.view.data = static_cast<const std::byte*>(static_cast<const void*>(found.array.data()));
  mask.keep = keep(found.array);
  return mask;
}

Array export_array(const ConstTensorView& view, const std::shared_ptr<const void>& owner,
                   Bf16Family family, bool writable) {
  const nb::object capsule = keep(owner);
  std::array<size_t, ConstTensorView::kMaxRank> shape{};
  bool has_elements = true;
  for (int d = 0; d < view.rank; ++d) {
    shape[static_cast<size_t>(d)] = static_cast<size_t>(view.dim(d));
    has_elements = has_elements && view.dim(d) > 0;
  }
  static constexpr std::byte kNothing{};
  const std::byte* const data = has_elements ? view.data : &kNothing;
  const auto rank = static_cast<size_t>(view.rank);
  const nb::dlpack::dtype dtype = view.dtype == DType::f32   ? nb::dtype<float>()
                                  : view.dtype == DType::f16 ? nb::dlpack::dtype{2, 16, 1}
                                                             : nb::dtype<uint16_t>();
  nb::object array;
  if (writable) {
    array = nb::cast(nb::ndarray<nb::numpy>(const_cast<std::byte*>(data), rank, shape.data(),
                                            capsule, view.stride.data(), dtype));
  } else {
    array = nb::cast(nb::ndarray<nb::numpy, nb::ro>(data, rank, shape.data(), capsule,
                                                    view.stride.data(), dtype));
  }
  if (view.dtype == DType::bf16) {
    array = family == Bf16Family::ml_dtypes
                ? array.attr("view")(nb::module_::import_("ml_dtypes").attr("bfloat16"))
                : nb::module_::import_("kvik._bfloat16").attr("BFloat16Array")(array);
  }
  return nb::borrow<Array>(array);
}

nb::tuple export_pair(const std::optional<KvArrays>& arrays, Bf16Family family) {
  if (!arrays) return nb::make_tuple(nb::none(), nb::none());
  return nb::make_tuple(export_array(arrays->keys, arrays->owner, family),
                        export_array(arrays->values, arrays->owner, family));
}

nb::object export_mask(CausalMask mask) {
  if (mask.kind == MaskKind::none) return nb::none();
  if (mask.kind == MaskKind::causal) return nb::str("causal");
  const auto data = std::make_shared<std::vector<std::byte>>(std::move(mask.data));
  const std::shared_ptr<const void> owner = data;
  if (mask.type == MaskType::boolean) {
    return nb::cast(nb::ndarray<nb::numpy, bool>(
        data->data(), {static_cast<size_t>(mask.num_rows), static_cast<size_t>(mask.num_cols)},
        keep(owner)));
  }
  const DType dtype = mask.type == MaskType::f32   ? DType::f32
                      : mask.type == MaskType::f16 ? DType::f16
                                                   : DType::bf16;
  return export_array(ConstTensorView(data->data(), dtype, {mask.num_rows, mask.num_cols}), owner,
                      Bf16Family::own, true);
}

OwnedTensor make_tensor(DType dtype, std::initializer_list<int64_t> shape) {
  int64_t bytes = dtype_bytes(dtype);
  for (const int64_t dim : shape) {
    const std::optional<int64_t> product = checked_product({bytes, dim});
    if (!product || dim < 0) throw nb::value_error("an array of this shape exceeds 2^63 bytes");
    bytes = *product;
  }
  const auto rounded = static_cast<size_t>(bytes) / 64 * 64 + 64;
  void* const memory = std::aligned_alloc(64, rounded);
  if (memory == nullptr) {
    raise({StatusCode::out_of_memory, "no memory for " + std::to_string(bytes) + " bytes"});
  }
  return {TensorView(memory, dtype, shape), std::shared_ptr<const void>(memory, [](const void* p) {
            std::free(const_cast<void*>(p));
          })};
}

}  // namespace kvik::python
