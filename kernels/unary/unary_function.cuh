// The functions of unary's ops on a device, n elements at once: what kernels/unary and
// kernels/fused compute.
#pragma once

#include "kernels/device/math.cuh"
#include "kernels/unary/unary.h"

namespace weft::kernels {

/// A case of a switch over ops: f(x) of each element.
#define WEFT_UNARY(op, f) \
  case UnaryOp::op:       \
    return each([=]([[maybe_unused]] auto x) { return f; })

/// A test gives 0 or 1, which bool's conversion keeps.
struct UnaryFunction {
  UnaryOp op;
  double alpha;

  template <class Acc, int n>
  __device__ void operator()(const Acc (&in)[1][n], Acc (&out)[n]) const {
    const auto each = [&](auto f) {
#pragma unroll
      for (int k = 0; k < n; ++k) out[k] = static_cast<Acc>(f(in[0][k]));
    };
    if constexpr (std::is_integral_v<Acc>) {
      integers(each);
    } else {
      floats<Acc>(each);
    }
  }

  template <class Each>
  __device__ void integers(Each each) const {
    const auto factor = static_cast<uint64_t>(static_cast<int64_t>(alpha));
    switch (op) {
      WEFT_UNARY(kNeg, 0 - static_cast<uint64_t>(x));
      WEFT_UNARY(kAbs, x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x));
      WEFT_UNARY(kSign, x > 0 ? 1 : x < 0 ? -1 : 0);
      WEFT_UNARY(kSquare, static_cast<uint64_t>(x) * static_cast<uint64_t>(x));
      WEFT_UNARY(kRelu, x < 0 ? 0 : x);
      WEFT_UNARY(kScale, static_cast<uint64_t>(x) * factor);
      WEFT_UNARY(kShift, static_cast<uint64_t>(x) + factor);
      WEFT_UNARY(kLogicalNot, x == 0);
      WEFT_UNARY(kIsNan, 0);
      WEFT_UNARY(kIsInf, 0);
      WEFT_UNARY(kIsFinite, 1);
      default:  // the roundings
        return each([](int64_t x) { return x; });
    }
  }

  template <class Acc, class Each>
  __device__ void floats(Each each) const {
    constexpr Acc kInfinity = std::numeric_limits<Acc>::infinity();
    const Acc a = static_cast<Acc>(alpha);
    switch (op) {
      WEFT_UNARY(kNeg, -x);
      WEFT_UNARY(kAbs, std::abs(x));
      WEFT_UNARY(kSign, x > 0 ? Acc{1} : x < 0 ? Acc{-1} : x);
      WEFT_UNARY(kSquare, x * x);
      WEFT_UNARY(kRelu, x < 0 ? Acc{0} : x);
      WEFT_UNARY(kFloor, std::floor(x));
      WEFT_UNARY(kCeil, std::ceil(x));
      WEFT_UNARY(kRound, std::rint(x));
      WEFT_UNARY(kTrunc, std::trunc(x));
      WEFT_UNARY(kScale, a * x);
      WEFT_UNARY(kShift, x + a);
      WEFT_UNARY(kLeakyRelu, x > 0 ? x : a * x);
      WEFT_UNARY(kReciprocal, 1 / x);
      WEFT_UNARY(kSqrt, std::sqrt(x));
      WEFT_UNARY(kRsqrt, 1 / std::sqrt(x));
      WEFT_UNARY(kHardswish, x * hardswish_gate(x) / 6);
      WEFT_UNARY(kElu, x > 0 ? x : a * std::expm1(x));
#define WEFT_LIBM(op, f, ...) WEFT_UNARY(op, std::f(x));
#include "kernels/unary/unary_libm.inc"
      WEFT_UNARY(kSigmoid, sigmoid(x));
      WEFT_UNARY(kSoftplus, softplus(x));
      WEFT_UNARY(kSilu, silu(x));
      WEFT_UNARY(kGeluErf, gelu_erf(x));
      WEFT_UNARY(kGeluTanh, gelu_tanh(x));
      WEFT_UNARY(kLogicalNot, x == 0);
      WEFT_UNARY(kIsNan, x != x);
      WEFT_UNARY(kIsInf, std::abs(x) == kInfinity);
      WEFT_UNARY(kIsFinite, std::abs(x) < kInfinity);
    }
  }
};

#undef WEFT_UNARY

}  // namespace weft::kernels
