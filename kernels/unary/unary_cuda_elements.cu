// kernels/elementwise/pointwise.cuh with one switch over the ops for every 8 elements.
// Memory-bound.
#include "kernels/device/math.cuh"
#include "kernels/elementwise/convert.h"
#include "kernels/elementwise/pointwise.cuh"
#include "kernels/unary/unary.h"

namespace weft::kernels {
namespace {

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
      case UnaryOp::neg:
        return each([](int64_t x) { return 0 - static_cast<uint64_t>(x); });
      case UnaryOp::abs:
        return each([](int64_t x) {
          const auto u = static_cast<uint64_t>(x);
          return x < 0 ? 0 - u : u;
        });
      case UnaryOp::sign:
        return each([](int64_t x) { return x > 0 ? 1 : x < 0 ? -1 : 0; });
      case UnaryOp::square:
        return each([](int64_t x) { return static_cast<uint64_t>(x) * static_cast<uint64_t>(x); });
      case UnaryOp::relu:
        return each([](int64_t x) { return x < 0 ? 0 : x; });
      case UnaryOp::scale:
        return each([=](int64_t x) { return static_cast<uint64_t>(x) * factor; });
      case UnaryOp::shift:
        return each([=](int64_t x) { return static_cast<uint64_t>(x) + factor; });
      case UnaryOp::logical_not:
        return each([](int64_t x) { return x == 0; });
      case UnaryOp::is_nan:
      case UnaryOp::is_inf:
        return each([](int64_t) { return 0; });
      case UnaryOp::is_finite:
        return each([](int64_t) { return 1; });
      default:  // the roundings
        return each([](int64_t x) { return x; });
    }
  }

  template <class Acc, class Each>
  __device__ void floats(Each each) const {
    constexpr Acc kInfinity = std::numeric_limits<Acc>::infinity();
    const Acc a = static_cast<Acc>(alpha);
    switch (op) {
      case UnaryOp::neg:
        return each([](Acc x) { return -x; });
      case UnaryOp::abs:
        return each([](Acc x) { return std::abs(x); });
      case UnaryOp::sign:
        return each([](Acc x) { return x > 0 ? Acc{1} : x < 0 ? Acc{-1} : x; });
      case UnaryOp::square:
        return each([](Acc x) { return x * x; });
      case UnaryOp::relu:
        return each([](Acc x) { return x < 0 ? Acc{0} : x; });
      case UnaryOp::floor:
        return each([](Acc x) { return std::floor(x); });
      case UnaryOp::ceil:
        return each([](Acc x) { return std::ceil(x); });
      case UnaryOp::round:
        return each([](Acc x) { return std::rint(x); });
      case UnaryOp::trunc:
        return each([](Acc x) { return std::trunc(x); });
      case UnaryOp::scale:
        return each([=](Acc x) { return a * x; });
      case UnaryOp::shift:
        return each([=](Acc x) { return x + a; });
      case UnaryOp::leaky_relu:
        return each([=](Acc x) { return x > 0 ? x : a * x; });
      case UnaryOp::reciprocal:
        return each([](Acc x) { return 1 / x; });
      case UnaryOp::sqrt:
        return each([](Acc x) { return std::sqrt(x); });
      case UnaryOp::rsqrt:
        return each([](Acc x) { return 1 / std::sqrt(x); });
      case UnaryOp::exp:
        return each([](Acc x) { return std::exp(x); });
      case UnaryOp::expm1:
        return each([](Acc x) { return std::expm1(x); });
      case UnaryOp::log:
        return each([](Acc x) { return std::log(x); });
      case UnaryOp::log1p:
        return each([](Acc x) { return std::log1p(x); });
      case UnaryOp::sin:
        return each([](Acc x) { return std::sin(x); });
      case UnaryOp::cos:
        return each([](Acc x) { return std::cos(x); });
      case UnaryOp::tanh:
        return each([](Acc x) { return std::tanh(x); });
      case UnaryOp::erf:
        return each([](Acc x) { return std::erf(x); });
      case UnaryOp::sigmoid:
        return each([](Acc x) { return sigmoid(x); });
      case UnaryOp::softplus:
        return each([](Acc x) { return softplus(x); });
      case UnaryOp::silu:
        return each([](Acc x) { return silu(x); });
      case UnaryOp::gelu_erf:
        return each([](Acc x) { return gelu_erf(x); });
      case UnaryOp::gelu_tanh:
        return each([](Acc x) { return gelu_tanh(x); });
      case UnaryOp::logical_not:
        return each([](Acc x) { return x == 0; });
      case UnaryOp::is_nan:
        return each([](Acc x) { return x != x; });
      case UnaryOp::is_inf:
        return each([=](Acc x) { return std::abs(x) == kInfinity; });
      case UnaryOp::is_finite:
        return each([=](Acc x) { return std::abs(x) < kInfinity; });
    }
  }
};

}  // namespace

void unary_cuda_elements(const UnaryProblem& p) {
  with_arithmetic(arithmetic_type(p.x.dtype()), [&](auto access) {
    pointwise<decltype(access)>(UnaryFunction{p.op, p.alpha}, p.y, std::array{p.x});
  });
}

}  // namespace weft::kernels
