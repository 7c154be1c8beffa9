// Arrays that come from Python and go to it, without copies where the memory allows.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "kvik/core/tensor_view.h"
#include "kvik/layer_cache/causal_mask.h"
#include "kvik/layer_cache/kv_arrays.h"

namespace kvik::python {

inline bool is_any_object(PyObject*) { return true; }

// Arguments and results whose names in signatures say what they hold. Any object passes; import_*
// says what is wrong with it.
class ArrayLike : public nanobind::object {
  NB_OBJECT(ArrayLike, nanobind::object, "kvik._types.ArrayLike", is_any_object)
};
class Array : public nanobind::object {
  NB_OBJECT(Array, nanobind::object, "kvik._types.Array", is_any_object)
};

// How arrays of bf16, which NumPy lacks, go out: as NumPy arrays of ml_dtypes.bfloat16 where they
// came in so, else as kvik.BFloat16Array. All others are NumPy arrays.
enum class Bf16Family : uint8_t { own, ml_dtypes };

// A borrowed array; `keep` holds the memory.
struct InputArray {
  ConstTensorView view;
  std::optional<Bf16Family> family;  // of bf16
  nanobind::object keep;
};
struct WritableArray {
  TensorView view;
  nanobind::object keep;
};

// Takes NumPy arrays and whatever has __dlpack__ or a buffer, of f32, f16 or bf16, in CPU memory.
// Any strides; copies nothing. Throws TypeError for what is no array, ValueError for another dtype,
// byte order or rank, a masked array, or a wrong device. `name` is that of the argument.
InputArray import_array(nanobind::handle array, const char* name, int rank);
// The same for an array to be written. Throws ValueError also where it is read-only.
WritableArray import_writable(nanobind::handle array, const char* name, int rank);

// Bytes in rows without gaps: those of the array, or a copy. The rank is any where it is negative.
using ByteArray = nanobind::ndarray<const uint8_t, nanobind::c_contig, nanobind::device::cpu>;
ByteArray import_bytes(nanobind::handle array, const char* name, int rank);

// What import_array takes, of any rank, as a NumPy array over the same memory and whether its
// elements, of uint16, are the bits of bfloat16.
nanobind::tuple plain_array(nanobind::handle array, const char* name);

// The array of rank 4 with strides that attention takes (the last one 1, none negative or of a
// broadcast): itself, or a row-major copy.
InputArray for_attention(InputArray array);

// Whether a view of rank 4 has such strides, and a row-major copy of one. Without Python.
bool fits_attention(const ConstTensorView& view);
struct OwnedTensor;
OwnedTensor row_major_copy(const ConstTensorView& view);

// The mask type whose elements are of this dtype.
constexpr MaskType mask_type_of(DType dtype) {
  return dtype == DType::f32 ? MaskType::f32 : dtype == DType::f16 ? MaskType::f16 : MaskType::bf16;
}

// A mask array of bool, f32, f16 or bf16, rank 2 to 4 (rank 3 stands for [1, H, q, kv]).
struct InputMask {
  MaskView view;
  nanobind::object keep;
};
InputMask import_mask(nanobind::handle array);

// What Python may do with memory of ours. read_only: a copy that nobody else sees. view: memory of
// a cache, which goes out as a kvik.CacheView, so that no other library gets to write it.
enum class Access : uint8_t { writable, read_only, view };

// An array over memory that `owner` holds.
Array export_array(const ConstTensorView& view, const std::shared_ptr<const void>& owner,
                   Bf16Family family, Access access);
// (keys, values), or (None, None) for none.
nanobind::tuple export_pair(const std::optional<KvArrays>& arrays, Bf16Family family,
                            Access access);
// Whether the bytes from the first to the last element of one meet those of the other.
bool may_overlap(const ConstTensorView& a, const ConstTensorView& b);
bool may_overlap(const ConstTensorView& a, const MaskView& mask);
// Throws ValueError for an array to be written whose elements lie over each other, or that has a
// negative stride.
void check_rows_apart(const ConstTensorView& view, const char* name);
// Requires: rank 4, equal shapes and dtypes; no overlap. Without Python.
void copy_elements(const ConstTensorView& from, const TensorView& to);

// None, "causal" or an array.
nanobind::object export_mask(CausalMask mask);

// Row-major memory of its own, 64-byte aligned, content undefined.
struct OwnedTensor {
  TensorView view;
  std::shared_ptr<const void> owner;
};
OwnedTensor make_tensor(DType dtype, std::initializer_list<int64_t> shape);

}  // namespace kvik::python
