// kernels/device/pointwise.cuh with one switch over the ops for every 8 elements.
// Memory-bound.
#include "kernels/device/math.cuh"
#include "kernels/device/pointwise.cuh"
#include "kernels/elementwise/convert.h"
#include "kernels/unary/unary.h"

namespace weft::kernels {
namespace {

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
      WEFT_UNARY(neg, 0 - static_cast<uint64_t>(x));
      WEFT_UNARY(abs, x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x));
      WEFT_UNARY(sign, x > 0 ? 1 : x < 0 ? -1 : 0);
      WEFT_UNARY(square, static_cast<uint64_t>(x) * static_cast<uint64_t>(x));
      WEFT_UNARY(relu, x < 0 ? 0 : x);
      WEFT_UNARY(scale, static_cast<uint64_t>(x) * factor);
      WEFT_UNARY(shift, static_cast<uint64_t>(x) + factor);
      WEFT_UNARY(logical_not, x == 0);
      WEFT_UNARY(is_nan, 0);
      WEFT_UNARY(is_inf, 0);
      WEFT_UNARY(is_finite, 1);
      default:  // the roundings
        return each([](int64_t x) { return x; });
    }
  }

  template <class Acc, class Each>
  __device__ void floats(Each each) const {
    constexpr Acc kInfinity = std::numeric_limits<Acc>::infinity();
    const Acc a = static_cast<Acc>(alpha);
    switch (op) {
      WEFT_UNARY(neg, -x);
      WEFT_UNARY(abs, std::abs(x));
      WEFT_UNARY(sign, x > 0 ? Acc{1} : x < 0 ? Acc{-1} : x);
      WEFT_UNARY(square, x * x);
      WEFT_UNARY(relu, x < 0 ? Acc{0} : x);
      WEFT_UNARY(floor, std::floor(x));
      WEFT_UNARY(ceil, std::ceil(x));
      WEFT_UNARY(round, std::rint(x));
      WEFT_UNARY(trunc, std::trunc(x));
      WEFT_UNARY(scale, a * x);
      WEFT_UNARY(shift, x + a);
      WEFT_UNARY(leaky_relu, x > 0 ? x : a * x);
      WEFT_UNARY(reciprocal, 1 / x);
      WEFT_UNARY(sqrt, std::sqrt(x));
      WEFT_UNARY(rsqrt, 1 / std::sqrt(x));
      WEFT_UNARY(exp, std::exp(x));
      WEFT_UNARY(expm1, std::expm1(x));
      WEFT_UNARY(log, std::log(x));
      WEFT_UNARY(log1p, std::log1p(x));
      WEFT_UNARY(sin, std::sin(x));
      WEFT_UNARY(cos, std::cos(x));
      WEFT_UNARY(tanh, std::tanh(x));
      WEFT_UNARY(erf, std::erf(x));
      WEFT_UNARY(sigmoid, sigmoid(x));
      WEFT_UNARY(softplus, softplus(x));
      WEFT_UNARY(silu, silu(x));
      WEFT_UNARY(gelu_erf, gelu_erf(x));
      WEFT_UNARY(gelu_tanh, gelu_tanh(x));
      WEFT_UNARY(logical_not, x == 0);
      WEFT_UNARY(is_nan, x != x);
      WEFT_UNARY(is_inf, std::abs(x) == kInfinity);
      WEFT_UNARY(is_finite, std::abs(x) < kInfinity);
    }
  }
};

#undef WEFT_UNARY

}  // namespace

void unary_cuda_elements(const UnaryProblem& p) {
  with_arithmetic(arithmetic_type(p.x.dtype()), [&](auto access) {
    pointwise<decltype(access)>(UnaryFunction{p.op, p.alpha}, p.y, std::array{p.x});
  });
}

}  // namespace weft::kernels
