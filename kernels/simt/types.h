// The vector types and qualifiers of CUDA C++, for the host compiler.
//
// A .cu file sees these through kernels/device/cuda.h. They have CUDA's names, members, sizes and
// alignments (CUDA C++ Programming Guide, "Built-in Vector Types").
#pragma once

#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

#define WEFT_SIMT_VECTOR(T, name, align2, align4)                       \
  struct name##1 {                                                      \
    T x;                                                                \
  };                                                                    \
  struct alignas(align2) name##2 {                                      \
    T x, y;                                                             \
  };                                                                    \
  struct name##3 {                                                      \
    T x, y, z;                                                          \
  };                                                                    \
  struct alignas(align4) name##4 {                                      \
    T x, y, z, w;                                                       \
  };                                                                    \
  constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }         \
  constexpr name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

WEFT_SIMT_VECTOR(signed char, char, 2, 4)
WEFT_SIMT_VECTOR(unsigned char, uchar, 2, 4)
WEFT_SIMT_VECTOR(short, short, 4, 8)
WEFT_SIMT_VECTOR(unsigned short, ushort, 4, 8)
WEFT_SIMT_VECTOR(int, int, 8, 16)
WEFT_SIMT_VECTOR(unsigned, uint, 8, 16)
WEFT_SIMT_VECTOR(long long, longlong, 16, 16)
WEFT_SIMT_VECTOR(unsigned long long, ulonglong, 16, 16)
WEFT_SIMT_VECTOR(float, float, 8, 16)
WEFT_SIMT_VECTOR(double, double, 16, 16)
#undef WEFT_SIMT_VECTOR

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
