// A view to write through, made from one that may only read.
// expect: no viable conversion|could not convert
#include "kvik/core/tensor_view.h"

#ifdef KVIK_RIGHT
kvik::ConstTensorView widen(const kvik::TensorView& view) { return view; }
#else
kvik::TensorView widen(const kvik::ConstTensorView& view) { return view; }
#endif
