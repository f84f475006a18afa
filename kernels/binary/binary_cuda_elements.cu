// kernels/device/pointwise.cuh with one switch over the ops for every 8 elements.
// Memory-bound.
#include "kernels/binary/binary.h"
#include "kernels/device/math.cuh"
#include "kernels/device/pointwise.cuh"
#include "kernels/elementwise/convert.h"

namespace weft::kernels {
namespace {

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
      WEFT_BINARY(add, ring, a + b);
      WEFT_BINARY(add_scaled, ring, a + static_cast<Ring>(factor) * b);
      WEFT_BINARY(sub, ring, a - b);
      WEFT_BINARY(mul, ring, a * b);
      WEFT_BINARY(maximum, each, a != a || a > b ? a : b);
      WEFT_BINARY(minimum, each, a != a || a < b ? a : b);
      WEFT_BINARY(eq, each, a == b);
      WEFT_BINARY(ne, each, a != b);
      WEFT_BINARY(lt, each, a < b);
      WEFT_BINARY(le, each, a <= b);
      WEFT_BINARY(gt, each, a > b);
      WEFT_BINARY(ge, each, a >= b);
      WEFT_BINARY(logical_and, each, a != 0 && b != 0);
      WEFT_BINARY(logical_or, each, a != 0 || b != 0);
      WEFT_BINARY(logical_xor, each, (a != 0) != (b != 0));
      default:
        if constexpr (!std::is_integral_v<Acc>) floats<Acc>(each, factor);
    }
  }

  template <class Acc, class Each>
  __device__ void floats(Each each, Acc factor) const {
    switch (op) {
      WEFT_BINARY(div, each, a / b);
      WEFT_BINARY(relu_grad, each, a > 0 ? b : Acc{0});
      WEFT_BINARY(leaky_relu_grad, each, a > 0 ? b : factor * b);
      WEFT_BINARY(sigmoid_grad, each, b * a * (1 - a));
      WEFT_BINARY(tanh_grad, each, b * ((1 - a) * (1 + a)));
      WEFT_BINARY(silu_grad, each, b * silu_derivative(a));
      WEFT_BINARY(gelu_erf_grad, each, b * gelu_erf_derivative(a));
      case BinaryOp::pow:
        // CUDA's powf is off by up to 4 units of the last place.
        return each(
            [](Acc a, Acc b) { return std::pow(static_cast<double>(a), static_cast<double>(b)); });
      default:
        return each([](Acc a, Acc b) { return b * gelu_tanh_derivative(a); });
    }
  }
};

#undef WEFT_BINARY

}  // namespace

void binary_cuda_elements(const BinaryProblem& p) {
  with_arithmetic(arithmetic_type(p.a.dtype(), p.b.dtype()), [&](auto access) {
    pointwise<decltype(access)>(BinaryFunction{p.op, p.alpha}, p.y, std::array{p.a, p.b});
  });
}

}  // namespace weft::kernels
