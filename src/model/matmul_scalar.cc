// The reference: plain C++, for any processor.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kvik/core/checked_math.h"
#include "model/blocks_32.h"
#include "model/blocks_k.h"
#include "model/blocks_plain.h"
#include "model/matmul_kernels.h"

namespace kvik::internal {
namespace {

struct Simd {
  struct Part {
    float lane[16];
  };
  static constexpr int kPartLanes = 16;
  static constexpr int kParts = 1;
  static constexpr int kTileX = 1;

  static Part zero() { return {}; }
  static Part load(const float* p) {
    Part part;
    std::memcpy(part.lane, p, sizeof part.lane);
    return part;
  }
  static void store(float* p, const Part& part) { std::memcpy(p, part.lane, sizeof part.lane); }
  static Part fma(const Part& w, const Part& x, Part acc) {
    for (int i = 0; i < 16; ++i) acc.lane[i] = std::fma(w.lane[i], x.lane[i], acc.lane[i]);
    return acc;
  }
  static void reduce_rows(const float* lanes, float* sums) {
    for (int r = 0; r < 4; ++r) {
      Part sum = load(lanes + 16 * r);
      for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) sum.lane[i] += sum.lane[i + half];
      }
      sums[r] = sum.lane[0];
    }
  }
  static void prefetch(const std::byte*) {}

  template <class Block>
  static void unpack(Block, const std::byte* p, Part* out) {
    constexpr int kElements = Block::kElements < 16 ? 16 : Block::kElements;
    float values[kElements];
    for (int i = 0; i < kElements / Block::kElements; ++i) {
      Block::decode(p + i * Block::kBytes, values + i * Block::kElements);
    }
    for (int i = 0; i < kElements / 16; ++i) out[i] = load(values + 16 * i);
  }
  struct Opened {
    float values[256];
  };
  template <class Block>
  static void open(Block, const std::byte* p, Opened* opened) {
    Block::decode(p, opened->values);
  }
  template <class Block>
  static void unpack(Block, const std::byte*, const Opened& opened, int run, Part* out) {
    for (int i = 0; i < 2; ++i) out[i] = load(opened.values + 32 * run + 16 * i);
  }
};

#include "model/matmul_body.inc"

}  // namespace

const KernelSet* scalar_kernels() { return &kKernels; }

}  // namespace kvik::internal
