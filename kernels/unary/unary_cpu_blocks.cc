// Blocks of 1024 elements in the arithmetic type (kernels/elementwise), one loop per op and type;
// arithmetic on bf16 alone skips the conversion of whole blocks.
// Memory-bound for arithmetic and, on AVX-512, nearly so for exp and GELU in f32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/unary/unary_cpu_blocks.cc"
#include "core/simd/targets.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/elementwise/block_io.h"
#include "kernels/simd/convert_inl.h"
#include "kernels/simd/math_inl.h"
#include "kernels/unary/unary.h"
#include "kernels/unary/unary_loops.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// Arithmetic on integers wraps around.
template <class T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
template <class T>
constexpr bool kIsInteger = std::is_integral_v<T>;

struct Neg {
  template <class T>
  T operator()(T x, T) const {
    if constexpr (kIsInteger<T>)
      return static_cast<T>(0 - static_cast<uint64_t>(x));
    else
      return -x;
  }
};
struct Abs {
  template <class T>
  T operator()(T x, T) const {
    if constexpr (kIsInteger<T>)
      return x < 0 ? Neg{}(x, x) : x;
    else
      return std::abs(x);
  }
};
struct Sign {
  template <class T>
  T operator()(T x, T) const {
    return x > 0 ? T{1} : x < 0 ? T{-1} : x;
  }
};
struct Square {
  template <class T>
  T operator()(T x, T) const {
    return static_cast<T>(static_cast<Wrapping<T>>(x) * static_cast<Wrapping<T>>(x));
  }
};
struct Relu {
  template <class T>
  T operator()(T x, T) const {
    return x < 0 ? T{0} : x;
  }
};
struct Floor {
  template <class T>
  T operator()(T x, T) const {
    if constexpr (kIsInteger<T>)
      return x;
    else
      return std::floor(x);
  }
};
struct Ceil {
  template <class T>
  T operator()(T x, T) const {
    if constexpr (kIsInteger<T>)
      return x;
    else
      return std::ceil(x);
  }
};
struct Round {
  template <class T>
  T operator()(T x, T) const {
    if constexpr (kIsInteger<T>)
      return x;
    else
      return std::nearbyint(x);
  }
};
struct Trunc {
  template <class T>
  T operator()(T x, T) const {
    if constexpr (kIsInteger<T>)
      return x;
    else
      return std::trunc(x);
  }
};
struct Scale {
  template <class T>
  T operator()(T x, T alpha) const {
    return static_cast<T>(static_cast<Wrapping<T>>(x) * static_cast<Wrapping<T>>(alpha));
  }
};
struct Shift {
  template <class T>
  T operator()(T x, T alpha) const {
    return static_cast<T>(static_cast<Wrapping<T>>(x) + static_cast<Wrapping<T>>(alpha));
  }
};
struct LeakyRelu {
  template <class T>
  T operator()(T x, T alpha) const {
    return x > 0 ? x : alpha * x;
  }
};
struct Reciprocal {
  template <class T>
  T operator()(T x, T) const {
    return 1 / x;
  }
};
struct Sqrt {
  template <class T>
  T operator()(T x, T) const {
    return std::sqrt(x);
  }
};
struct Rsqrt {
  template <class T>
  T operator()(T x, T) const {
    return 1 / std::sqrt(x);
  }
};
struct LogicalNot {
  template <class T>
  bool operator()(T x, T) const {
    return x == 0;
  }
};
struct IsNan {
  template <class T>
  bool operator()(T x, T) const {
    return x != x;
  }
};
struct IsInf {
  template <class T>
  bool operator()(T x, T) const {
    if constexpr (kIsInteger<T>)
      return false;
    else
      return std::abs(x) == std::numeric_limits<T>::infinity();
  }
};
struct IsFinite {
  template <class T>
  bool operator()(T x, T) const {
    if constexpr (kIsInteger<T>)
      return true;
    else
      return std::abs(x) < std::numeric_limits<T>::infinity();
  }
};

/// T is the type of the arithmetic, or bf16, whose arithmetic is in float.
template <class F, class T>
void plain_loop(const void* source, void* target, int64_t n, double factor) {
  using Acc = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  constexpr bool kIsTest = std::is_same_v<decltype(F{}(Acc{}, Acc{})), bool>;
  using Result = std::conditional_t<kIsTest, bool, T>;
  const T* x = static_cast<const T*>(source);
  Result* y = static_cast<Result*>(target);
  const Acc alpha = static_cast<Acc>(factor);
  // y is x or apart from it: every element depends on its own place only.
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    y[i] = static_cast<Result>(F{}(static_cast<Acc>(x[i]), alpha));
  }
}

template <hn::Vec<F32> (*f)(F32, hn::Vec<F32>)>
void vector_loop(const void* source, void* target, int64_t n, double) {
  const F32 d;
  const int64_t lanes = hn::Lanes(d);
  const float* x = static_cast<const float*>(source);
  float* y = static_cast<float*>(target);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(f(d, hn::LoadU(d, x + i)), d, y + i);
  if (i < n) store_f32_n(d, f(d, load_f32_n(d, x + i, n - i)), y + i, n - i);
}

template <class F>
UnaryLoop plain(DType type) {
  if (type == DType::f64) return plain_loop<F, double>;
  if (type == DType::f32) return plain_loop<F, float>;
  if (type == DType::bf16) return plain_loop<F, bf16>;
  return plain_loop<F, int64_t>;
}

template <class F>
UnaryLoop plain_floating(DType type) {
  if (type == DType::f64) return plain_loop<F, double>;
  return type == DType::bf16 ? plain_loop<F, bf16> : plain_loop<F, float>;
}

/// Functions of f32 in vectors.
UnaryLoop vector_loop_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::exp:
      return vector_loop<exp_f32>;
    case UnaryOp::expm1:
      return vector_loop<expm1_f32>;
    case UnaryOp::log:
      return vector_loop<log_f32>;
    case UnaryOp::log1p:
      return vector_loop<log1p_f32>;
    case UnaryOp::tanh:
      return vector_loop<tanh_f32>;
    case UnaryOp::erf:
      return vector_loop<erf_f32>;
    case UnaryOp::sigmoid:
      return vector_loop<sigmoid_f32>;
    case UnaryOp::softplus:
      return vector_loop<softplus_f32>;
    case UnaryOp::silu:
      return vector_loop<silu_f32>;
    case UnaryOp::gelu_erf:
      return vector_loop<gelu_erf_f32>;
    case UnaryOp::gelu_tanh:
      return vector_loop<gelu_tanh_f32>;
    default:
      break;
  }
  WEFT_ASSERT(false);
}

/// The loop of an op; of bf16 none where the arithmetic is worth more than the conversion.
UnaryLoop unary_loop(UnaryOp op, DType type) {
  if (UnaryLoop loop = unary_libm_loop(op, type)) return loop;
  switch (op) {
    case UnaryOp::neg:
      return plain<Neg>(type);
    case UnaryOp::abs:
      return plain<Abs>(type);
    case UnaryOp::sign:
      return plain<Sign>(type);
    case UnaryOp::square:
      return plain<Square>(type);
    case UnaryOp::relu:
      return plain<Relu>(type);
    case UnaryOp::floor:
      return plain<Floor>(type);
    case UnaryOp::ceil:
      return plain<Ceil>(type);
    case UnaryOp::round:
      return plain<Round>(type);
    case UnaryOp::trunc:
      return plain<Trunc>(type);
    case UnaryOp::scale:
      return plain<Scale>(type);
    case UnaryOp::shift:
      return plain<Shift>(type);
    case UnaryOp::leaky_relu:
      return plain_floating<LeakyRelu>(type);
    case UnaryOp::reciprocal:
      return plain_floating<Reciprocal>(type);
    case UnaryOp::sqrt:
      return plain_floating<Sqrt>(type);
    case UnaryOp::rsqrt:
      return plain_floating<Rsqrt>(type);
    case UnaryOp::logical_not:
      return plain<LogicalNot>(type);
    case UnaryOp::is_nan:
      return plain<IsNan>(type);
    case UnaryOp::is_inf:
      return plain<IsInf>(type);
    case UnaryOp::is_finite:
      return plain<IsFinite>(type);
    default:
      return type == DType::bf16 ? nullptr : vector_loop_of(op);
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(unary_loop);

void unary_cpu_blocks(const UnaryProblem& p) {
  const Walk walk({p.y, p.x});
  DType type = arithmetic_type(p.x.dtype());
  UnaryLoop loop = nullptr;
  if (p.x.dtype() == DType::bf16 && (p.y.dtype() == DType::bf16 || is_test(p.op))) {
    loop = HWY_DYNAMIC_DISPATCH(unary_loop)(p.op, DType::bf16);
    if (loop) type = DType::bf16;
  }
  if (!loop) loop = HWY_DYNAMIC_DISPATCH(unary_loop)(p.op, type);
  const DType result = is_test(p.op) ? DType::boolean : type;
  parallel_blocks(walk, [&](int64_t first, int64_t last) {
    BlockReader x(walk, 1, p.x, type);
    BlockWriter y(walk, 0, p.y, result);
    for (int64_t i = first; i < last; ++i) {
      const Block block = walk.block(i);
      loop(x.read(block), y.target(block), block.size(), p.alpha);
      y.commit(block);
    }
  });
}

}  // namespace weft::kernels
#endif
