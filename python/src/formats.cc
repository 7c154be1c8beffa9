// The storage formats of rows: their list, encoding and decoding.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "caches.h"
#include "errors.h"
#include "kvik/core/dtype.h"
#include "kvik/format/kv_format.h"
#include "kvik/format/packed_code.h"
#include "kvik/format/row_codec.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvik::python {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using PackedRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// One format: a dtype whose elements are stored as they are, or a packed code.
struct Format {
  std::string name;
  std::optional<DType> plain;
  KvCode packed = KvCode::q8;  // unless plain

  bool is_rotated() const { return !plain && kvik::is_rotated(packed); }
  bool keys() const { return plain || stores_keys(packed); }
  bool values() const { return plain || stores_values(packed); }
  int64_t bits() const { return plain ? dtype_bytes(*plain) * 8 : packed_code_bits(packed); }

  // Throws ValueError for head dims that the format does not take.
  int64_t row_bytes(int64_t head_dim) const {
    if (head_dim < 0 || head_dim > kMaxHeadDim) {
      throw nb::value_error(("head_dim is " + std::to_string(head_dim) + "; it may be 0 to " +
                             std::to_string(kMaxHeadDim))
                                .c_str());
    }
    if (plain) return head_dim * dtype_bytes(*plain);
    const int dim = static_cast<int>(head_dim);
    kvik::python::check(kvik::check(packed, dim));
    return packed_row_bytes(packed, dim);
  }
};

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    formats.push_back({std::string(dtype_name(dtype)), dtype});
  }
  for (const KvCode code : all_packed_codes()) {
    formats.push_back({std::string(kv_code_name(code)), std::nullopt, code});
  }
  return formats;
}

Format format_of(const std::string& name) {
  std::string names;
  for (const Format& format : all_formats()) {
    if (format.name == name) return format;
    names += " " + format.name;
  }
  throw nb::value_error(("there is no format \"" + name + "\"; the formats:" + names).c_str());
}

void encode_plain(DType dtype, const float* row, size_t size, std::byte* packed) {
  for (size_t i = 0; i < size; ++i) {
    if (dtype == DType::f32) {
      std::memcpy(packed + 4 * i, row + i, 4);
      continue;
    }
    const uint16_t bits = dtype == DType::f16 ? f32_to_f16(row[i]) : f32_to_bf16(row[i]);
    std::memcpy(packed + 2 * i, &bits, 2);
  }
}

void decode_plain(DType dtype, const std::byte* packed, size_t size, float* row) {
  for (size_t i = 0; i < size; ++i) {
    if (dtype == DType::f32) {
      std::memcpy(row + i, packed + 4 * i, 4);
      continue;
    }
    uint16_t bits;
    std::memcpy(&bits, packed + 2 * i, 2);
    row[i] = dtype == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
}

// A new NumPy array [num_rows, num_columns] and its memory.
template <class T>
struct NewRows {
  T* data;
  nb::object array;
};
template <class T>
NewRows<T> new_rows(size_t num_rows, size_t num_columns) {
  const auto held = new std::vector<T>(num_rows * num_columns);
  const nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return {held->data(),
          nb::cast(nb::ndarray<nb::numpy, T>(held->data(), {num_rows, num_columns}, owner))};
}

nb::object encode(const Rows& rows, const std::string& name) {
  const Format format = format_of(name);
  const size_t head_dim = rows.shape(1);
  const auto row_bytes = static_cast<size_t>(format.row_bytes(static_cast<int64_t>(head_dim)));
  const auto packed = new_rows<uint8_t>(rows.shape(0), row_bytes);
  std::optional<size_t> refused;
  {
    const nb::gil_scoped_release no_gil;
    for (size_t i = 0; i < rows.shape(0) && !refused; ++i) {
      const std::span<const float> row(rows.data() + i * head_dim, head_dim);
      const std::span<std::byte> bytes(
          static_cast<std::byte*>(static_cast<void*>(packed.data)) + i * row_bytes, row_bytes);
      if (format.plain) {
        encode_plain(*format.plain, row.data(), head_dim, bytes.data());
      } else if (!encode_row(format.packed, row, bytes)) {
        refused = i;
      }
    }
  }
  if (refused) {
    throw nb::value_error(("row " + std::to_string(*refused) + " cannot be stored as " + name +
                           ": an element is not finite, or too large")
                              .c_str());
  }
  return packed.array;
}

nb::object decode(const PackedRows& packed, const std::string& name, int64_t head_dim,
                  bool stored) {
  const Format format = format_of(name);
  const auto row_bytes = static_cast<size_t>(format.row_bytes(head_dim));
  if (packed.shape(1) != row_bytes) {
    throw nb::value_error(("packed rows have " + std::to_string(packed.shape(1)) + " bytes; " +
                           name + " rows of head_dim " + std::to_string(head_dim) + " have " +
                           std::to_string(row_bytes))
                              .c_str());
  }
  const auto dim = static_cast<size_t>(head_dim);
  const auto rows = new_rows<float>(packed.shape(0), dim);
  const nb::gil_scoped_release no_gil;
  for (size_t i = 0; i < packed.shape(0); ++i) {
    const std::span<const std::byte> bytes(
        static_cast<const std::byte*>(static_cast<const void*>(packed.data())) + i * row_bytes,
        row_bytes);
    const std::span<float> row(rows.data + i * dim, dim);
    if (format.plain) {
      decode_plain(*format.plain, bytes.data(), dim, row.data());
    } else if (stored) {
      decode_stored_row(format.packed, bytes, row);
    } else {
      decode_row(format.packed, bytes, row);
    }
  }
  return rows.array;
}

// The bits of a DLPack array of bfloat16 as a NumPy array of uint16 over the same memory; None for
// other arrays.
nb::object bfloat16_bits(nb::handle object) {
  nb::ndarray<nb::ro, nb::device::cpu> array;
  if (!nb::try_cast(object, array, false)) return nb::none();
  if (array.dtype() !=
      nb::dlpack::dtype{static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1}) {
    return nb::none();
  }
  std::vector<size_t> shape;
  std::vector<int64_t> strides;
  for (size_t d = 0; d < array.ndim(); ++d) {
    shape.push_back(array.shape(d));
    strides.push_back(array.stride(d));
  }
  return nb::cast(nb::ndarray<nb::numpy, nb::ro>(array.data(), array.ndim(), shape.data(),
                                                 nb::borrow(object), strides.data(),
                                                 nb::dtype<uint16_t>()));
}

// The same memory as an array of bfloat16 with __dlpack__.
nb::object bfloat16_dlpack(nb::ndarray<nb::numpy, nb::ro> bits) {
  std::vector<size_t> shape;
  std::vector<int64_t> strides;
  for (size_t d = 0; d < bits.ndim(); ++d) {
    shape.push_back(bits.shape(d));
    strides.push_back(bits.stride(d));
  }
  const nb::dlpack::dtype bfloat{static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
  return nb::cast(nb::ndarray<nb::array_api, nb::ro>(bits.data(), bits.ndim(), shape.data(),
                                                     nb::cast(bits), strides.data(), bfloat));
}

}  // namespace

void add_formats(nb::module_& module) {
  nb::class_<Format>(module, "FormatInfo", "A storage format of rows.")
      .def_ro("name", &Format::name, "Its name, for encode and decode.")
      .def_prop_ro(
          "is_packed", [](const Format& f) { return !f.plain; },
          "False for f32, f16 and bf16, whose elements are stored as they are.")
      .def_prop_ro("bits", &Format::bits, "Bits of an element's code, scales not counted.")
      .def_prop_ro("stores_keys", &Format::keys)
      .def_prop_ro("stores_values", &Format::values)
      .def_prop_ro("is_rotated", &Format::is_rotated,
                   "Whether rows are stored after a rotation that decoding undoes.")
      .def("row_bytes", &Format::row_bytes, "head_dim"_a,
           "Bytes of one row. Raises ValueError for head dims that the format does not take.")
      .def("__repr__", [](const Format& f) { return "<kvik.FormatInfo " + f.name + ">"; });
  module.def("formats", &all_formats, "All storage formats.");
  module.def("_encode", &encode, "rows"_a, "format"_a);
  module.def("_decode", &decode, "packed"_a, "format"_a, "head_dim"_a, "stored"_a);
  module.def("_bfloat16_bits", &bfloat16_bits, "array"_a);
  module.def("_bfloat16_dlpack", &bfloat16_dlpack, "bits"_a);
}

}  // namespace kvik::python
