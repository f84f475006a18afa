// Blocks of 1024 elements in the arithmetic type (kernels/elementwise), one loop per op and type;
// arithmetic on bf16 alone skips the conversion of whole blocks.
// Memory-bound but for pow and integers' division.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/binary/binary_cpu_blocks.cc"
#include "core/simd/targets.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <type_traits>

#include "kernels/binary/binary.h"
#include "kernels/binary/binary_loops.h"
#include "kernels/elementwise/block_io.h"
#include "kernels/simd/convert_inl.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

/// Arithmetic on integers wraps around.
template <class T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;

struct Add {
  template <class T>
  T operator()(T a, T b, T) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};
struct Sub {
  template <class T>
  T operator()(T a, T b, T) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
  }
};
struct Mul {
  template <class T>
  T operator()(T a, T b, T) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};
struct AddScaled {
  template <class T>
  T operator()(T a, T b, T alpha) const {
    return Add{}(a, Mul{}(b, alpha, alpha), alpha);
  }
};
struct Div {
  template <class T>
  T operator()(T a, T b, T) const {
    return a / b;
  }
};
struct Maximum {
  template <class T>
  T operator()(T a, T b, T) const {
    return a > b || a != a ? a : b;
  }
};
struct Minimum {
  template <class T>
  T operator()(T a, T b, T) const {
    return a < b || a != a ? a : b;
  }
};
struct Eq {
  template <class T>
  bool operator()(T a, T b, T) const {
    return a == b;
  }
};
struct Ne {
  template <class T>
  bool operator()(T a, T b, T) const {
    return a != b;
  }
};
struct Lt {
  template <class T>
  bool operator()(T a, T b, T) const {
    return a < b;
  }
};
struct Le {
  template <class T>
  bool operator()(T a, T b, T) const {
    return a <= b;
  }
};
struct Gt {
  template <class T>
  bool operator()(T a, T b, T) const {
    return a > b;
  }
};
struct Ge {
  template <class T>
  bool operator()(T a, T b, T) const {
    return a >= b;
  }
};
struct LogicalAnd {
  template <class T>
  bool operator()(T a, T b, T) const {
    return (a != 0) & (b != 0);
  }
};
struct LogicalOr {
  template <class T>
  bool operator()(T a, T b, T) const {
    return (a != 0) | (b != 0);
  }
};
struct LogicalXor {
  template <class T>
  bool operator()(T a, T b, T) const {
    return (a != 0) != (b != 0);
  }
};
struct ReluGrad {
  template <class T>
  T operator()(T a, T b, T) const {
    return a > 0 ? b : T{0};
  }
};
struct LeakyReluGrad {
  template <class T>
  T operator()(T a, T b, T alpha) const {
    return a > 0 ? b : alpha * b;
  }
};
struct SigmoidGrad {
  template <class T>
  T operator()(T a, T b, T) const {
    return b * (a * (1 - a));
  }
};
struct TanhGrad {
  template <class T>
  T operator()(T a, T b, T) const {
    return b * ((1 - a) * (1 + a));
  }
};

/// T is the type of the arithmetic, or bf16, whose arithmetic is in float.
template <class F, class T>
void plain_loop(const void* left, const void* right, void* target, int64_t n, double factor) {
  using Acc = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  constexpr bool kIsTest = std::is_same_v<decltype(F{}(Acc{}, Acc{}, Acc{})), bool>;
  using Result = std::conditional_t<kIsTest, bool, T>;
  const T* a = static_cast<const T*>(left);
  const T* b = static_cast<const T*>(right);
  Result* y = static_cast<Result*>(target);
  const Acc alpha = static_cast<Acc>(factor);
  // y is a or b or apart from them: every element depends on its own place only.
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    y[i] = static_cast<Result>(F{}(static_cast<Acc>(a[i]), static_cast<Acc>(b[i]), alpha));
  }
}

/// b times the derivative at a.
template <hn::Vec<F32> (*derivative)(F32, hn::Vec<F32>)>
void gradient_loop(const void* left, const void* right, void* target, int64_t n, double) {
  const F32 d;
  const int64_t lanes = hn::Lanes(d);
  const float* a = static_cast<const float*>(left);
  const float* b = static_cast<const float*>(right);
  float* y = static_cast<float*>(target);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto slope = derivative(d, hn::LoadU(d, a + i));
    hn::StoreU(hn::Mul(slope, hn::LoadU(d, b + i)), d, y + i);
  }
  if (i < n) {
    const auto slope = derivative(d, load_f32_n(d, a + i, n - i));
    store_f32_n(d, hn::Mul(slope, load_f32_n(d, b + i, n - i)), y + i, n - i);
  }
}

template <class F>
BinaryLoop plain(DType type) {
  if (type == DType::f64) return plain_loop<F, double>;
  if (type == DType::f32) return plain_loop<F, float>;
  if (type == DType::bf16) return plain_loop<F, bf16>;
  return plain_loop<F, int64_t>;
}

template <class F>
BinaryLoop plain_floating(DType type) {
  if (type == DType::f64) return plain_loop<F, double>;
  return type == DType::bf16 ? plain_loop<F, bf16> : plain_loop<F, float>;
}

/// Functions of f32 in vectors.
BinaryLoop vector_loop_of(BinaryOp op) {
  switch (op) {
    case BinaryOp::silu_grad:
      return gradient_loop<silu_derivative_f32>;
    case BinaryOp::gelu_erf_grad:
      return gradient_loop<gelu_erf_derivative_f32>;
    case BinaryOp::gelu_tanh_grad:
      return gradient_loop<gelu_tanh_derivative_f32>;
    default:
      break;
  }
  WEFT_ASSERT(false);
}

/// The loop of an op; of bf16 none where the arithmetic is worth more than the conversion.
BinaryLoop binary_loop(BinaryOp op, DType type) {
  if (BinaryLoop loop = binary_scalar_loop(op, type)) return loop;
  switch (op) {
    case BinaryOp::add:
      return plain<Add>(type);
    case BinaryOp::add_scaled:
      return plain<AddScaled>(type);
    case BinaryOp::sub:
      return plain<Sub>(type);
    case BinaryOp::mul:
      return plain<Mul>(type);
    case BinaryOp::div:
      return plain_floating<Div>(type);
    case BinaryOp::maximum:
      return plain<Maximum>(type);
    case BinaryOp::minimum:
      return plain<Minimum>(type);
    case BinaryOp::eq:
      return plain<Eq>(type);
    case BinaryOp::ne:
      return plain<Ne>(type);
    case BinaryOp::lt:
      return plain<Lt>(type);
    case BinaryOp::le:
      return plain<Le>(type);
    case BinaryOp::gt:
      return plain<Gt>(type);
    case BinaryOp::ge:
      return plain<Ge>(type);
    case BinaryOp::logical_and:
      return plain<LogicalAnd>(type);
    case BinaryOp::logical_or:
      return plain<LogicalOr>(type);
    case BinaryOp::logical_xor:
      return plain<LogicalXor>(type);
    case BinaryOp::relu_grad:
      return plain_floating<ReluGrad>(type);
    case BinaryOp::leaky_relu_grad:
      return plain_floating<LeakyReluGrad>(type);
    case BinaryOp::sigmoid_grad:
      return plain_floating<SigmoidGrad>(type);
    case BinaryOp::tanh_grad:
      return plain_floating<TanhGrad>(type);
    default:
      return type == DType::bf16 ? nullptr : vector_loop_of(op);
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(binary_loop);

void binary_cpu_blocks(const BinaryProblem& p) {
  const Walk walk({p.y, p.a, p.b});
  DType type = arithmetic_type(p.a.dtype(), p.b.dtype());
  BinaryLoop loop = nullptr;
  if (p.a.dtype() == DType::bf16 && p.b.dtype() == DType::bf16 &&
      (p.y.dtype() == DType::bf16 || is_test(p.op))) {
    loop = HWY_DYNAMIC_DISPATCH(binary_loop)(p.op, DType::bf16);
    if (loop) type = DType::bf16;
  }
  if (!loop) loop = HWY_DYNAMIC_DISPATCH(binary_loop)(p.op, type);
  const DType result = is_test(p.op) ? DType::boolean : type;
  parallel_blocks(walk, [&](int64_t first, int64_t last) {
    BlockReader a(walk, 1, p.a, type), b(walk, 2, p.b, type);
    BlockWriter y(walk, 0, p.y, result);
    for (int64_t i = first; i < last; ++i) {
      const Block block = walk.block(i);
      loop(a.read(block), b.read(block), y.target(block), block.size(), p.alpha);
      y.commit(block);
    }
  });
}

}  // namespace weft::kernels
#endif
