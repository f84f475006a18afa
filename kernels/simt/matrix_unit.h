// The arithmetic of the emulated tensor cores: the types of their operands, which element of a
// fragment lies where, and the product itself.
#pragma once

#include <bit>
#include <cstring>

#include "core/dtype.h"
#include "core/float_formats.h"
#include "kernels/simt/tensor_core.h"

namespace weft::simt {

struct MatrixTypeInfo {
  const char* name;
  DType dtype;
  int bytes;
};
inline constexpr MatrixTypeInfo kMatrixTypes[] = {{"f16", DType::f16, 2},
                                                  {"bf16", DType::bf16, 2},
                                                  {"tf32", DType::tf32, 4},
                                                  {"e4m3", DType::f8e4m3, 1},
                                                  {"e5m2", DType::f8e5m2, 1}};

constexpr const MatrixTypeInfo& info(MatrixType type) {
  return kMatrixTypes[static_cast<int>(type)];
}

/// The element as an f32, which holds every operand; of tf32 as the tensor core reads it.
inline float widen(MatrixType type, const void* element) {
  uint32_t bits = 0;
  std::memcpy(&bits, element, info(type).bytes);
  switch (type) {
    case MatrixType::f16:
      return static_cast<float>(f16::from_bits(static_cast<uint16_t>(bits)));
    case MatrixType::bf16:
      return static_cast<float>(bf16::from_bits(static_cast<uint16_t>(bits)));
    case MatrixType::tf32:
      return std::bit_cast<float>(bits & 0xffffe000u);  // the tensor core truncates
    case MatrixType::e4m3:
      return static_cast<float>(f8e4m3::from_bits(static_cast<uint8_t>(bits)));
    case MatrixType::e5m2:
      return static_cast<float>(f8e5m2::from_bits(static_cast<uint8_t>(bits)));
  }
  return 0;
}

enum class Instruction : uint8_t { kMma, kWgmma };

struct OperandTypes {
  MatrixType a, b;
};

/// D [m, n] += A [m, k] B^T, B [n, k]; all row-major: as the GPU of Options::tensor_core does it
/// (an H100, where that lacks wgmma or the types), or faster. fp8 is never done faster.
void multiply(Instruction instruction, OperandTypes types, int m, int n, int k, const float* a,
              const float* b, float* d);

struct Position {
  int row, col;
};
/// Of element i of a lane's fragments, whose elements have so many bytes: A is 16 by k, B k by 8.
inline Position a_position(int lane, int i, int bytes, int k) {
  const int g = lane / 4, q = lane % 4;
  const int per_register = 4 / bytes;
  const int in_register = i % per_register, reg = i / per_register;
  const int width = 4 * per_register;  // columns of a half
  if (k == width) return {g + 8 * reg, per_register * q + in_register};
  return {g + 8 * (reg % 2), per_register * q + in_register + width * (reg / 2)};
}
inline Position b_position(int lane, int i, int bytes) {
  const int per_register = 4 / bytes;
  return {i % per_register + per_register * (lane % 4) + 4 * per_register * (i / per_register),
          lane / 4};
}

}  // namespace weft::simt
