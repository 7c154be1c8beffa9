// A Result that nobody looks at.
// expect: nodiscard
#include "kvik/core/buffer.h"

bool can_reserve() {
#ifdef KVIK_RIGHT
  return kvik::Buffer::reserve(1).ok();
#else
  kvik::Buffer::reserve(1);
  return true;
#endif
}
