// The rotation of the rotated formats: fixed random signs, then a Walsh-Hadamard transform over
// blocks.
#pragma once

#include <cstdint>
#include <optional>

namespace kvik::internal {

// Output number i of splitmix64 seeded with 42 + head_dim decides the sign of element i: top bit
// set means -1. Each head dim has its own signs.
constexpr bool is_sign_negative(int head_dim, int i) {
  uint64_t z =
      static_cast<uint64_t>(42 + head_dim) + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return ((z ^ (z >> 31)) >> 63) != 0;
}

// Length of the blocks that are transformed apart: the largest power of two that divides head_dim.
constexpr int hadamard_block(int head_dim) { return head_dim & -head_dim; }

// Rows below have multiples of 16 elements, up to kMaxHeadDim.

// Multiplies by the signs.
void apply_signs(float* row, int head_dim) noexcept;

// Walsh-Hadamard transform of each block in Sylvester order (entry i, j is -1 where i & j has an
// odd number of bits), butterfly strides 1, 2, 4, ..., times f32(1 / sqrt(block)). Its own inverse.
void hadamard(float* row, int head_dim) noexcept;

// Signs, then hadamard; and the inverse. Both keep lengths.
void rotate(float* row, int head_dim) noexcept;
void unrotate(float* row, int head_dim) noexcept;

// The row rotated into `rotated`, and the sum of its squares as sum16 adds them. nullopt for a row
// that has a number, or this sum, that is not finite.
std::optional<float> rotate_row(const float* row, int head_dim, float* rotated) noexcept;

}  // namespace kvik::internal
