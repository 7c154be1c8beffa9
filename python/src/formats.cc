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

#include "arguments.h"
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

// One format, as Python sees it.
struct Format {
  KvCode code;

  std::string name() const { return std::string(kv_code_name(code)); }
  int64_t bits() const {
    return is_packed(code) ? packed_code_bits(code) : dtype_bytes(dtype_of(code)) * 8;
  }

  // Throws ValueError for head dims that the format does not take.
  int64_t row_bytes(int64_t head_dim) const {
    if (head_dim < 0 || head_dim > kMaxHeadDim) {
      throw nb::value_error(("head_dim is " + std::to_string(head_dim) + "; it may be 0 to " +
                             std::to_string(kMaxHeadDim))
                                .c_str());
    }
    if (!is_packed(code)) return head_dim * dtype_bytes(dtype_of(code));
    const int dim = static_cast<int>(head_dim);
    kvik::python::check(kvik::check(code, dim));
    return packed_row_bytes(code, dim);
  }
};

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (const KvCode code : all_kv_codes()) formats.push_back({code});
  return formats;
}

Format format_of(const std::string& name) {
  std::string names;
  for (const Format& format : all_formats()) {
    if (format.name() == name) return format;
    names += " " + format.name();
  }
  throw nb::value_error(("there is no format \"" + name + "\"; the formats:" + names).c_str());
}

// False for a row that the format cannot store.
bool encode_any(KvCode code, std::span<const float> row, std::span<std::byte> bytes) {
  if (is_packed(code)) return encode_row(code, row, bytes);
  const DType dtype = dtype_of(code);
  std::byte* to = bytes.data();
  for (const float x : row) {
    store_float(dtype, to, x);
    to += dtype_bytes(dtype);
  }
  return true;
}

void decode_any(KvCode code, std::span<const std::byte> bytes, std::span<float> row, bool stored) {
  if (is_packed(code)) return (stored ? decode_stored_row : decode_row)(code, bytes, row);
  const DType dtype = dtype_of(code);
  const std::byte* from = bytes.data();
  for (float& x : row) {
    x = load_float(dtype, from);
    from += dtype_bytes(dtype);
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

nb::object encode(const Rows& rows, nb::handle format_name) {
  const std::string name = to_text(format_name, "format");
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
      if (!encode_any(format.code, row, bytes)) refused = i;
    }
  }
  if (refused) {
    throw nb::value_error(("row " + std::to_string(*refused) + " cannot be stored as " + name +
                           ": an element is not finite, or too large")
                              .c_str());
  }
  return packed.array;
}

nb::object decode(nb::handle array, nb::handle format_name, nb::handle head_dim_value,
                  nb::handle stored_value) {
  const std::string name = to_text(format_name, "format");
  const int64_t head_dim = to_integer(head_dim_value, "head_dim");
  const bool stored = to_flag(stored_value, "stored");
  const ByteArray packed = import_bytes(array, "packed", 2);
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
    decode_any(format.code, bytes, row, stored);
  }
  return rows.array;
}

// The bits of an array of bfloat16 as a NumPy array of uint16 over the same memory; None for other
// arrays.
nb::object bfloat16_bits(nb::handle object) {
  const nb::tuple plain = plain_array(object, "array");
  return nb::cast<bool>(plain[1]) ? nb::object(plain[0]) : nb::none();
}

// The memory of an array of uint16 as an array of bfloat16 with __dlpack__.
template <class Array, class... Writing>
nb::object bfloat16_over(const Array& bits) {
  std::vector<size_t> shape;
  std::vector<int64_t> strides;
  for (size_t d = 0; d < bits.ndim(); ++d) {
    shape.push_back(bits.shape(d));
    strides.push_back(bits.stride(d));
  }
  const nb::dlpack::dtype bfloat{static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
  return nb::cast(nb::ndarray<nb::array_api, Writing...>(bits.data(), bits.ndim(), shape.data(),
                                                         nb::cast(bits), strides.data(), bfloat));
}

// Read-only where the bits are.
nb::object bfloat16_dlpack(nb::handle bits) {
  nb::ndarray<nb::numpy> writable;
  if (nb::try_cast(bits, writable, false)) return bfloat16_over(writable);
  return bfloat16_over<nb::ndarray<nb::numpy, nb::ro>, nb::ro>(
      nb::cast<nb::ndarray<nb::numpy, nb::ro>>(bits));
}

}  // namespace

void add_formats(nb::module_& module) {
  nb::class_<Format> info(module, "FormatInfo", "A storage format of rows.");
  def_method(
      info, "def row_bytes(self, head_dim: int) -> int",
      [](const Format& f, const Arguments& a) { return f.row_bytes(a.integer("head_dim")); },
      "Bytes of one row. Raises ValueError for head dims that the format does not take.");
  info.def_prop_ro("name", &Format::name, "Its name, for encode and decode.")
      .def_prop_ro(
          "is_packed", [](const Format& f) { return is_packed(f.code); },
          "False for f32, f16 and bf16, whose elements are stored as they are.")
      .def_prop_ro("bits", &Format::bits, "Bits of an element's code, scales not counted.")
      .def_prop_ro("stores_keys", [](const Format& f) { return stores_keys(f.code); })
      .def_prop_ro("stores_values", [](const Format& f) { return stores_values(f.code); })
      .def_prop_ro(
          "is_rotated", [](const Format& f) { return is_rotated(f.code); },
          "Whether rows are stored after a rotation that decoding undoes.")
      .def("__repr__", [](const Format& f) { return "<kvik.FormatInfo " + f.name() + ">"; });
  def_function(
      module, "def formats() -> list[FormatInfo]", [](const Arguments&) { return all_formats(); },
      "All storage formats.");
  module.def("_plain_array", &plain_array, "array"_a.none(), "name"_a);
  module.def(
      "_plain_bytes",
      [](nb::handle array, const char* name) {
        const ByteArray bytes = import_bytes(array, name, -1);
        std::vector<size_t> shape;
        for (size_t d = 0; d < bytes.ndim(); ++d) shape.push_back(bytes.shape(d));
        return nb::ndarray<nb::numpy, const uint8_t>(bytes.data(), shape.size(), shape.data(),
                                                     nb::cast(bytes));
      },
      "array"_a.none(), "name"_a);
  module.def("_encode", &encode, "rows"_a, "format"_a.none());
  module.def("_decode", &decode, "packed"_a.none(), "format"_a.none(), "head_dim"_a.none(),
             "stored"_a.none());
  module.def("_bfloat16_bits", &bfloat16_bits, "array"_a);
  module.def("_bfloat16_dlpack", &bfloat16_dlpack, "bits"_a);
}

}  // namespace kvik::python
