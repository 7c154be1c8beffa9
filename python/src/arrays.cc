#include "arrays.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
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

// A type of a module that Python keeps for ever, looked up once.
nb::handle type_of(const char* module, const char* name) {
  return nb::object(nb::module_::import_(module).attr(name)).release();
}

bool is_numpy(nb::handle object) {
  static const nb::handle type = type_of("numpy", "ndarray");
  return PyObject_IsInstance(object.ptr(), type.ptr()) == 1;
}

std::string text_of(nb::handle object) {
  const nb::str text(object);
  Py_ssize_t size = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (utf8 == nullptr) {
    PyErr_Clear();
    return "?";
  }
  return {utf8, static_cast<size_t>(size)};
}

[[noreturn]] void wrong_dtype(const char* name, const std::string& dtype, const char* wanted) {
  throw nb::value_error((std::string(name) + " has dtype " + dtype + "; use " + wanted).c_str());
}

constexpr const char* kRowDtypes = "float32, float16 or bfloat16";

nb::handle dtype_object(const char* name) {
  return nb::object(nb::module_::import_("numpy").attr("dtype")(name)).release();
}

// An array that nanobind can take, and what it cannot know of it.
struct Source {
  nb::object array;
  bool is_bf16 = false;  // the elements of `array` are the bits of bfloat16
  Bf16Family family = Bf16Family::own;
};

// NumPy's own class only: a subclass may have another meaning of its elements, or hand out copies.
Source numpy_source(nb::handle object, const char* name, const char* wanted) {
  static const nb::handle plain = type_of("numpy", "ndarray");
  Source source{nb::borrow(object)};
  if (!object.type().is(plain)) {
    if (nb::isinstance(object, nb::module_::import_("numpy").attr("ma").attr("MaskedArray"))) {
      throw nb::value_error((std::string(name) +
                             " is a masked array, whose mask would be lost; give .filled(...) or "
                             ".data")
                                .c_str());
    }
    source.array = object.attr("view")(plain);
  }
  const nb::object dtype = source.array.attr("dtype");
  // The usual ones are one object each.
  static const nb::handle f32 = dtype_object("float32");
  static const nb::handle f16 = dtype_object("float16");
  if (dtype.is(f32) || dtype.is(f16)) return source;
  const std::string text = text_of(dtype);
  if (text == "bfloat16") {
    source.array = source.array.attr("view")("uint16");
    source.is_bf16 = true;
    source.family = Bf16Family::ml_dtypes;
    return source;
  }
  if (!nb::cast<bool>(dtype.attr("isnative"))) {
    wrong_dtype(name, text, "the byte order of this machine (a.astype(a.dtype.newbyteorder()))");
  }
  const std::string kind = text_of(dtype.attr("kind"));
  if (kind.find_first_of("fiub") == std::string::npos ||
      nb::cast<int>(dtype.attr("itemsize")) > 8) {
    wrong_dtype(name, text, wanted);
  }
  return source;
}

Source source_of(nb::handle object, const char* name, const char* wanted) {
  static const nb::handle own = type_of("kvik._bfloat16", "BFloat16Array");
  if (is_numpy(object)) return numpy_source(object, name, wanted);
  if (object.type().is(own)) return {object.attr("bits"), true, Bf16Family::own};
  return {nb::borrow(object)};
}

// Why an object that is no array of NumPy was not taken.
[[noreturn]] void refuse_object(nb::handle object, const char* name) {
  const std::string type = nb::type_name(object.type()).c_str();
  if (!PyType_Check(object.ptr()) && nb::hasattr(object, "__dlpack__")) {
    std::string reason = "what it gives is no capsule of an array in memory";
    try {
      object.attr("__dlpack__")();
    } catch (nb::python_error& error) {
      reason = text_of(error.value());
    }
    throw nb::value_error(
        (std::string(name) + ": __dlpack__ of " + type + " gives no array: " + reason).c_str());
  }
  if (PyObject_CheckBuffer(object.ptr())) {
    throw nb::value_error((std::string(name) + ": the buffer of " + type +
                           " has elements that are no float32, float16 or bfloat16 of this "
                           "machine's byte order")
                              .c_str());
  }
  throw nb::type_error(
      (std::string(name) + " must be an array of NumPy or one with __dlpack__, not " + type)
          .c_str());
}

// What an import needs to know of an array beyond DLPack.
template <class Imported>
struct Found {
  Imported array;
  bool is_bf16 = false;
  Bf16Family family = Bf16Family::own;
};

template <class Imported>
Found<Imported> find_array(nb::handle object, const char* name, const char* wanted = kRowDtypes) {
  const Source source = source_of(object, name, wanted);
  Found<Imported> found{{}, source.is_bf16, source.family};
  if (nb::try_cast<Imported>(source.array, found.array, false)) return found;
  AnyArray readable;
  if (!std::is_same_v<Imported, AnyArray> &&
      nb::try_cast<AnyArray>(source.array, readable, false)) {
    throw nb::value_error((std::string(name) + " is read-only").c_str());
  }
  if (is_numpy(object)) wrong_dtype(name, text_of(object.attr("dtype")), wanted);
  refuse_object(object, name);
}

// The name of a type of DLPack.
std::string dtype_text(nb::dlpack::dtype dtype) {
  static constexpr std::array<const char*, 18> kKinds = {"int",
                                                         "uint",
                                                         "float",
                                                         "opaque handle",
                                                         "bfloat",
                                                         "complex",
                                                         "bool",
                                                         "float8_e3m4",
                                                         "float8_e4m3",
                                                         "float8_e4m3b11fnuz",
                                                         "float8_e4m3fn",
                                                         "float8_e4m3fnuz",
                                                         "float8_e5m2",
                                                         "float8_e5m2fnuz",
                                                         "float8_e8m0fnu",
                                                         "float6_e2m3fn",
                                                         "float6_e3m2fn",
                                                         "float4_e2m1fn"};
  std::string text = dtype.code < kKinds.size() ? kKinds[dtype.code]
                                                : "type " + std::to_string(dtype.code) + " of ";
  if (dtype.code < 6 && dtype.code != 3) text += std::to_string(dtype.bits);
  if (dtype.code >= kKinds.size()) text += std::to_string(dtype.bits) + " bits";
  if (dtype.lanes != 1) text += " in " + std::to_string(dtype.lanes) + " lanes";
  return text;
}

bool is_type(nb::dlpack::dtype dtype, Code code, int bits) {
  return dtype.code == static_cast<uint8_t>(code) && dtype.bits == bits && dtype.lanes == 1;
}

template <class Imported>
DType dtype_of(const Found<Imported>& found, const char* name, const char* wanted = kRowDtypes) {
  const nb::dlpack::dtype dtype = found.array.dtype();
  if (found.is_bf16 || is_type(dtype, Code::Bfloat, 16)) return DType::bf16;
  if (is_type(dtype, Code::Float, 32)) return DType::f32;
  if (is_type(dtype, Code::Float, 16)) return DType::f16;
  wrong_dtype(name, dtype_text(dtype), wanted);
}

template <class Imported>
void check_device(const Imported& array, const char* name) {
  if (array.device_type() == kDlpackCpu) return;
  throw nb::value_error((std::string(name) + " is in the memory of another device (DLPack type " +
                         std::to_string(array.device_type()) + "); move it to the CPU first")
                            .c_str());
}

template <class Imported>
void check_rank(const Imported& array, const char* name, int rank) {
  if (rank < 0 || static_cast<int>(array.ndim()) == rank) return;
  throw nb::value_error((std::string(name) + " has " + std::to_string(array.ndim()) +
                         " dimensions; it needs " + std::to_string(rank))
                            .c_str());
}

template <class Imported, class View>
void take_shape(const Imported& array, View& view) {
  int64_t step = 1;
  for (size_t d = array.ndim(); d-- > 0;) {
    view.shape[d] = static_cast<int64_t>(array.shape(d));
    // A stride that is never taken says nothing: it may be 0 or negative.
    const bool is_taken = array.stride_ptr() != nullptr && view.shape[d] > 1;
    view.stride[d] = is_taken ? array.stride(d) : step;
    step *= view.shape[d];
  }
}

template <class View, class Imported>
View view_of(const Found<Imported>& found, const char* name, int rank) {
  check_device(found.array, name);
  View view;
  view.dtype = dtype_of(found, name);
  check_rank(found.array, name, rank);
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
    array.family = found.family;
  }
  return array;
}

WritableArray import_writable(nb::handle object, const char* name, int rank) {
  // JAX's arrays never change, but their capsules do not say so.
  const std::string type = nb::type_name(object.type()).c_str();
  if (type.rfind("jax", 0) == 0) {
    throw nb::value_error((std::string(name) + " is read-only: an array of JAX").c_str());
  }
  const Found<AnyWritable> found = find_array<AnyWritable>(object, name);
  WritableArray array;
  array.view = view_of<TensorView>(found, name, rank);
  array.view.data = static_cast<std::byte*>(static_cast<void*>(found.array.data()));
  array.keep = keep(found.array);
  return array;
}

ByteArray import_bytes(nb::handle object, const char* name, int rank) {
  const Found<AnyArray> found = find_array<AnyArray>(object, name, "uint8");
  check_device(found.array, name);
  if (found.is_bf16 || !is_type(found.array.dtype(), Code::UInt, 8)) {
    wrong_dtype(name, found.is_bf16 ? "bfloat16" : dtype_text(found.array.dtype()), "uint8");
  }
  check_rank(found.array, name, rank);
  ByteArray bytes;
  if (!nb::try_cast(source_of(object, name, "uint8").array, bytes)) {
    throw nb::value_error((std::string(name) + " must be row-major").c_str());
  }
  return bytes;
}

nb::tuple plain_array(nb::handle object, const char* name) {
  const Found<AnyArray> found = find_array<AnyArray>(object, name);
  check_device(found.array, name);
  const bool is_bf16 = dtype_of(found, name) == DType::bf16;
  std::vector<size_t> shape;
  std::vector<int64_t> strides;
  for (size_t d = 0; d < found.array.ndim(); ++d) {
    shape.push_back(found.array.shape(d));
    strides.push_back(found.array.stride(d));
  }
  const nb::object plain = nb::cast(nb::ndarray<nb::numpy, nb::ro>(
      found.array.data(), shape.size(), shape.data(), keep(found.array), strides.data(),
      is_bf16 ? nb::dtype<uint16_t>() : found.array.dtype()));
  return nb::make_tuple(plain, is_bf16);
}

bool fits_attention(const ConstTensorView& view) {
  bool fits = view.dim(3) <= 1 || view.step(3) == 1;
  for (int d = 0; d < 3; ++d) fits = fits && (view.dim(d) <= 1 || view.step(d) > 0);
  return fits;
}

OwnedTensor row_major_copy(const ConstTensorView& from) {
  OwnedTensor copy = make_tensor(from.dtype, {from.dim(0), from.dim(1), from.dim(2), from.dim(3)});
  copy_elements(from, copy.view);
  return copy;
}

InputArray for_attention(InputArray array) {
  if (fits_attention(array.view)) return array;
  OwnedTensor copy = row_major_copy(array.view);
  array.view = copy.view;
  array.keep = keep(copy.owner);
  return array;
}

namespace {

// First and last byte of what a tensor or mask spans, each at least one element; none where it has
// no elements.
struct Span {
  uintptr_t first, last;
};
template <class View>
std::optional<Span> span_of(const View& view, int64_t element_bytes) {
  int64_t low = 0;
  int64_t high = 0;
  for (size_t d = 0; d < static_cast<size_t>(view.rank); ++d) {
    if (view.shape[d] == 0) return std::nullopt;
    const int64_t reach = (view.shape[d] - 1) * view.stride[d] * element_bytes;
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<uintptr_t>(view.data);
  return Span{base + static_cast<uintptr_t>(low),
              base + static_cast<uintptr_t>(high + element_bytes - 1)};
}

bool meet(const std::optional<Span>& a, const std::optional<Span>& b) {
  return a && b && a->first <= b->last && b->first <= a->last;
}

}  // namespace

bool may_overlap(const ConstTensorView& a, const ConstTensorView& b) {
  return meet(span_of(a, dtype_bytes(a.dtype)), span_of(b, dtype_bytes(b.dtype)));
}

bool may_overlap(const ConstTensorView& a, const MaskView& mask) {
  const int64_t bytes = mask.type == MaskType::boolean ? 1 : mask.type == MaskType::f32 ? 4 : 2;
  return meet(span_of(a, dtype_bytes(a.dtype)), span_of(mask, bytes));
}

void check_rows_apart(const ConstTensorView& view, const char* name) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, count
  for (int d = 0; d < view.rank; ++d) {
    if (view.dim(d) == 0) return;
    if (view.dim(d) == 1) continue;
    if (view.step(d) < 0) {
      throw nb::value_error((std::string(name) + " has the stride " + std::to_string(view.step(d)) +
                             " in dimension " + std::to_string(d) + "; it must not be negative")
                                .c_str());
    }
    dims.emplace_back(view.step(d), view.dim(d));
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, count] : dims) {
    if (stride < extent) {
      throw nb::value_error(
          (std::string(name) + " has elements that lie over each other; give it memory of its own")
              .c_str());
    }
    extent = stride * (count - 1) + extent;
  }
}

void copy_elements(const ConstTensorView& from, const TensorView& to) {
  if (from.dim(3) == 0) return;
  const int64_t size = dtype_bytes(from.dtype);
  const bool by_row = from.step(3) == 1 && to.step(3) == 1;
  for (int64_t b = 0; b < from.dim(0); ++b) {
    for (int64_t h = 0; h < from.dim(1); ++h) {
      for (int64_t t = 0; t < from.dim(2); ++t) {
        const std::byte* const source = from.at(b, h) + t * from.step(2) * size;
        std::byte* const target = to.at(b, h) + t * to.step(2) * size;
        if (by_row) {
          std::memcpy(target, source, static_cast<size_t>(from.dim(3) * size));
          continue;
        }
        for (int64_t d = 0; d < from.dim(3); ++d) {
          std::memcpy(target + d * to.step(3) * size, source + d * from.step(3) * size,
                      static_cast<size_t>(size));
        }
      }
    }
  }
}

InputMask import_mask(nb::handle object) {
  constexpr const char* kMaskDtypes = "bool, float32, float16 or bfloat16";
  const Found<AnyArray> found = find_array<AnyArray>(object, "mask", kMaskDtypes);
  check_device(found.array, "mask");
  InputMask mask;
  if (is_type(found.array.dtype(), Code::Bool, 8)) {
    mask.view.type = MaskType::boolean;
  } else {
    mask.view.type = mask_type_of(dtype_of(found, "mask", kMaskDtypes));
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
                   Bf16Family family, Access access) {
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
  if (access == Access::writable) {
    array = nb::cast(nb::ndarray<nb::numpy>(const_cast<std::byte*>(data), rank, shape.data(),
                                            capsule, view.stride.data(), dtype));
  } else {
    array = nb::cast(nb::ndarray<nb::numpy, nb::ro>(data, rank, shape.data(), capsule,
                                                    view.stride.data(), dtype));
  }
  if (access == Access::view) {
    static const nb::handle type = type_of("kvik._views", "CacheView");
    array = array.attr("view")(type);
  }
  if (view.dtype == DType::bf16) {
    array = family == Bf16Family::ml_dtypes
                ? array.attr("view")(nb::module_::import_("ml_dtypes").attr("bfloat16"))
                : nb::module_::import_("kvik._bfloat16").attr("BFloat16Array")(array);
  }
  return nb::borrow<Array>(array);
}

nb::tuple export_pair(const std::optional<KvArrays>& arrays, Bf16Family family, Access access) {
  if (!arrays) return nb::make_tuple(nb::none(), nb::none());
  return nb::make_tuple(export_array(arrays->keys, arrays->owner, family, access),
                        export_array(arrays->values, arrays->owner, family, access));
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
                      Bf16Family::own, Access::writable);
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
