// kernels/elementwise/pointwise.cuh with one switch over the ops for every 8 elements.
// Memory-bound.
#include "kernels/binary/binary.h"
#include "kernels/device/math.cuh"
#include "kernels/elementwise/convert.h"
#include "kernels/elementwise/pointwise.cuh"

namespace weft::kernels {
namespace {

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
      case BinaryOp::add:
        return ring([](Ring a, Ring b) { return a + b; });
      case BinaryOp::add_scaled:
        return ring([=](Ring a, Ring b) { return a + static_cast<Ring>(factor) * b; });
      case BinaryOp::sub:
        return ring([](Ring a, Ring b) { return a - b; });
      case BinaryOp::mul:
        return ring([](Ring a, Ring b) { return a * b; });
      case BinaryOp::maximum:
        return each([](Acc a, Acc b) { return a != a || a > b ? a : b; });
      case BinaryOp::minimum:
        return each([](Acc a, Acc b) { return a != a || a < b ? a : b; });
      case BinaryOp::eq:
        return each([](Acc a, Acc b) { return a == b; });
      case BinaryOp::ne:
        return each([](Acc a, Acc b) { return a != b; });
      case BinaryOp::lt:
        return each([](Acc a, Acc b) { return a < b; });
      case BinaryOp::le:
        return each([](Acc a, Acc b) { return a <= b; });
      case BinaryOp::gt:
        return each([](Acc a, Acc b) { return a > b; });
      case BinaryOp::ge:
        return each([](Acc a, Acc b) { return a >= b; });
      case BinaryOp::logical_and:
        return each([](Acc a, Acc b) { return a != 0 && b != 0; });
      case BinaryOp::logical_or:
        return each([](Acc a, Acc b) { return a != 0 || b != 0; });
      case BinaryOp::logical_xor:
        return each([](Acc a, Acc b) { return (a != 0) != (b != 0); });
      default:
        if constexpr (!std::is_integral_v<Acc>) floats<Acc>(each, factor);
    }
  }

  template <class Acc, class Each>
  __device__ void floats(Each each, Acc factor) const {
    switch (op) {
      case BinaryOp::div:
        return each([](Acc a, Acc b) { return a / b; });
      case BinaryOp::pow:
        // CUDA's powf is off by up to 4 units of the last place.
        return each(
            [](Acc a, Acc b) { return std::pow(static_cast<double>(a), static_cast<double>(b)); });
      case BinaryOp::relu_grad:
        return each([](Acc a, Acc b) { return a > 0 ? b : Acc{0}; });
      case BinaryOp::leaky_relu_grad:
        return each([=](Acc a, Acc b) { return a > 0 ? b : factor * b; });
      case BinaryOp::sigmoid_grad:
        return each([](Acc a, Acc b) { return b * a * (1 - a); });
      case BinaryOp::tanh_grad:
        return each([](Acc a, Acc b) { return b * ((1 - a) * (1 + a)); });
      case BinaryOp::silu_grad:
        return each([](Acc a, Acc b) { return b * silu_derivative(a); });
      case BinaryOp::gelu_erf_grad:
        return each([](Acc a, Acc b) { return b * gelu_erf_derivative(a); });
      default:
        return each([](Acc a, Acc b) { return b * gelu_tanh_derivative(a); });
    }
  }
};

}  // namespace

void binary_cuda_elements(const BinaryProblem& p) {
  with_arithmetic(arithmetic_type(p.a.dtype(), p.b.dtype()), [&](auto access) {
    pointwise<decltype(access)>(BinaryFunction{p.op, p.alpha}, p.y, std::array{p.a, p.b});
  });
}

}  // namespace weft::kernels
