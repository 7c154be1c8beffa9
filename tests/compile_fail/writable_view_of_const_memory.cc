// A view to write through, made over memory that is const.
// expect: invalid conversion|no matching (constructor|function)
#include "kvik/core/tensor_view.h"

#ifdef KVIK_RIGHT
using View = kvik::ConstTensorView;
#else
using View = kvik::TensorView;
#endif

View view_of(const float* values) { return View(values, kvik::DType::f32, {4}); }
