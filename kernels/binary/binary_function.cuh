// The functions of binary's ops on a device, n elements at once: what kernels/binary and
// kernels/fused compute.
#pragma once

#include "kernels/binary/binary.h"
#include "kernels/device/math.cuh"

namespace weft::kernels {

/// A case of a switch over ops: f(a, b) of each pair of elements, or of integers as a ring.
#define WEFT_BINARY(op, pairs, f) \
  case BinaryOp::op:              \
    return pairs([=](auto a, auto b) { return f; })

/// A comparison gives 0 or 1, which bool's conversion keeps.
struct BinaryFunction {
  BinaryOp op;
  double alpha;

  template <class Acc, int n>
  __device__ void operator()(const Acc (&in)[2][n], Acc (&out)[n]) const {
    // Integers wrap around.
    using Ring = std::conditional_t<std::is_integral_v<Acc>, uint64_t, Acc>;
    const auto each = [&](auto f) {
#pragma unroll
      for (int k = 0; k < n; ++k) out[k] = static_cast<Acc>(f(in[0][k], in[1][k]));
    };
    const auto ring = [&](auto f) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        out[k] = static_cast<Acc>(f(static_cast<Ring>(in[0][k]), static_cast<Ring>(in[1][k])));
      }
    };
    const Acc factor = static_cast<Acc>(alpha);
    switch (op) {
      WEFT_BINARY(kAdd, ring, a + b);
      WEFT_BINARY(kAddScaled, ring, a + static_cast<Ring>(factor) * b);
      WEFT_BINARY(kSub, ring, a - b);
      WEFT_BINARY(kMul, ring, a * b);
      WEFT_BINARY(kMaximum, each, a != a || a > b ? a : b);
      WEFT_BINARY(kMinimum, each, a != a || a < b ? a : b);
      WEFT_BINARY(kEq, each, a == b);
      WEFT_BINARY(kNe, each, a != b);
      WEFT_BINARY(kLt, each, a < b);
      WEFT_BINARY(kLe, each, a <= b);
      WEFT_BINARY(kGt, each, a > b);
      WEFT_BINARY(kGe, each, a >= b);
      WEFT_BINARY(kLogicalAnd, each, a != 0 && b != 0);
      WEFT_BINARY(kLogicalOr, each, a != 0 || b != 0);
      WEFT_BINARY(kLogicalXor, each, (a != 0) != (b != 0));
      default:
        if constexpr (!std::is_integral_v<Acc>) floats<Acc>(each, factor);
    }
  }

  template <class Acc, class Each>
  __device__ void floats(Each each, Acc factor) const {
    switch (op) {
      WEFT_BINARY(kDiv, each, a / b);
      WEFT_BINARY(kFloorDivide, each, floor_quotient(a, b));
      WEFT_BINARY(kRemainder, each, floor_remainder(a, b));
      WEFT_BINARY(kAtan2, each, std::atan2(a, b));
      WEFT_BINARY(kReluGrad, each, a > 0 ? b : Acc{0});
      WEFT_BINARY(kLeakyReluGrad, each, a > 0 ? b : factor * b);
      WEFT_BINARY(kSigmoidGrad, each, b * a * (1 - a));
      WEFT_BINARY(kTanhGrad, each, b * ((1 - a) * (1 + a)));
      WEFT_BINARY(kSiluGrad, each, b * silu_derivative(a));
      WEFT_BINARY(kGeluErfGrad, each, b * gelu_erf_derivative(a));
      case BinaryOp::kPow:
        // CUDA's powf is off by up to 4 units of the last place.
        return each(
            [](Acc a, Acc b) { return std::pow(static_cast<double>(a), static_cast<double>(b)); });
      default:
        return each([](Acc a, Acc b) { return b * gelu_tanh_derivative(a); });
    }
  }
};

#undef WEFT_BINARY

}  // namespace weft::kernels
