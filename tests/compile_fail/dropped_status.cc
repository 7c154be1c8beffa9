// A Status that nobody looks at.
// expect: nodiscard
#include "kvik/core/buffer.h"

void grow(kvik::Buffer& buffer) {
#ifdef KVIK_RIGHT
  if (!buffer.commit(1).ok()) return;
#else
  buffer.commit(1);
#endif
}
