// Two owners of one mapping.
// expect: deleted
#include <utility>

#include "kvik/core/buffer.h"

kvik::Buffer take(kvik::Buffer& buffer) {
#ifdef KVIK_RIGHT
  kvik::Buffer mine = std::move(buffer);
#else
  kvik::Buffer mine = buffer;
#endif
  return mine;
}
