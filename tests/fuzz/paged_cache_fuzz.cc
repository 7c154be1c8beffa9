// Operations on a cache set from arbitrary bytes against a naive model
// (tests/support/cache_set_model.h), three bytes each; parts are destroyed in any order.
#include <cstddef>
#include <cstdint>

#include "fuzz/byte_reader.h"
#include "support/cache_set_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kvik::test::CacheOp;
  constexpr int kMostOps = 60;
  kvik::test::ByteReader bytes(data, size);
  const int block_size = 16 * (1 + bytes.below(3));
  const int max_blocks = 1 + bytes.below(24);
  const int order = bytes.below(6);
  kvik::test::CacheSetModel model(block_size, max_blocks);
  model.apply({});
  for (int i = 0; i < kMostOps && !bytes.empty(); ++i) {
    const auto kind = static_cast<CacheOp::Kind>(bytes.below(CacheOp::kNumKinds));
    const int a = bytes.byte();
    model.apply({kind, a, bytes.below(80)});
  }
  model.finish(order);
  return 0;
}
