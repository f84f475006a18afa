// Blocks of 1024 elements in the arithmetic type (kernels/elementwise), one loop per op and type;
// arithmetic on bf16 alone skips the conversion of whole blocks.
// Memory-bound but for pow, floats' division with a remainder and integers' division.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/binary/binary_cpu_blocks.cc"
#include "core/simd/targets_inl.h"

#include "kernels/binary/binary.h"
#include "kernels/elementwise/block_io.h"
#include "kernels/elementwise/loops_inl.h"
#include "kernels/simd/libm_inl.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

using Loops = ElementLoops<const void*, const void*>;

/// A case of a switch over ops: the loop of f(a, b, alpha), and the vector loop of f.
#define WEFT_BINARY(op, loop_of, f) \
  case BinaryOp::op:                \
    return loop_of(type, [](auto a, auto b, [[maybe_unused]] auto alpha) { return f; })
#define WEFT_VECTORS(op, f) \
  case BinaryOp::op:        \
    return Loops::vectors<f>

#if HWY_NATIVE_FMA
/// y[i] = f(a[i], b[i]) of floats, in vectors. A division's lanes that nobody asked for are 0 / 1.
template <hn::Vec<F32> (*f)(F32, hn::Vec<F32>, hn::Vec<F32>)>
void pairs(const void* left, const void* right, void* target, int64_t n, double) {
  const F32 d;
  const auto* const a = static_cast<const float*>(left);
  const auto* const b = static_cast<const float*>(right);
  auto* const y = static_cast<float*>(target);
  for_each_vector(d, n, [&](size_t i, size_t m) HWY_ATTR {
    auto divisor = load_part(d, b + i, m);
    if (m < hn::Lanes(d)) {
      divisor = hn::IfThenElse(hn::FirstN(d, m), divisor, hn::Set(d, 1.0f));
    }
    store_part(d, f(d, load_part(d, a + i, m), divisor), y + i, m);
  });
}
#endif

/// The loop of those of C's functions that have vectors of f32; null for others.
BinaryLoop vector_libm_loop([[maybe_unused]] BinaryOp op, [[maybe_unused]] DType type) {
#if HWY_NATIVE_FMA
  if (type != DType::f32) return nullptr;
  switch (op) {
    case BinaryOp::kAtan2:
      return pairs<atan2_f32>;
    case BinaryOp::kRemainder:
      return pairs<remainder_f32>;
    case BinaryOp::kFloorDivide:
      return pairs<floor_divide_f32>;
    default:
      break;
  }
#endif
  return nullptr;
}

/// The loop of an op; of bf16 none where the arithmetic is worth more than the conversion.
BinaryLoop binary_loop(BinaryOp op, DType type) {
  if (BinaryLoop loop = vector_libm_loop(op, type)) return loop;
  if (BinaryLoop loop = binary_scalar_loop(op, type)) return loop;
  switch (op) {
    WEFT_BINARY(kAdd, Loops::plain, wrapping(a) + wrapping(b));
    WEFT_BINARY(kAddScaled, Loops::plain, wrapping(a) + wrapping(b) * wrapping(alpha));
    WEFT_BINARY(kSub, Loops::plain, wrapping(a) - wrapping(b));
    WEFT_BINARY(kMul, Loops::plain, wrapping(a) * wrapping(b));
    WEFT_BINARY(kDiv, Loops::floating, a / b);
    WEFT_BINARY(kMaximum, Loops::plain, a > b || a != a ? a : b);
    WEFT_BINARY(kMinimum, Loops::plain, a < b || a != a ? a : b);
    WEFT_BINARY(kEq, Loops::plain, a == b);
    WEFT_BINARY(kNe, Loops::plain, a != b);
    WEFT_BINARY(kLt, Loops::plain, a < b);
    WEFT_BINARY(kLe, Loops::plain, a <= b);
    WEFT_BINARY(kGt, Loops::plain, a > b);
    WEFT_BINARY(kGe, Loops::plain, a >= b);
    WEFT_BINARY(kLogicalAnd, Loops::plain, bool((a != 0) & (b != 0)));
    WEFT_BINARY(kLogicalOr, Loops::plain, bool((a != 0) | (b != 0)));
    WEFT_BINARY(kLogicalXor, Loops::plain, (a != 0) != (b != 0));
    WEFT_BINARY(kReluGrad, Loops::floating, a > 0 ? b : 0);
    WEFT_BINARY(kLeakyReluGrad, Loops::floating, a > 0 ? b : alpha * b);
    WEFT_BINARY(kSigmoidGrad, Loops::floating, b * (a * (1 - a)));
    WEFT_BINARY(kTanhGrad, Loops::floating, b * ((1 - a) * (1 + a)));
    default:
      break;
  }
  if (type == DType::bf16) return nullptr;
  switch (op) {
    WEFT_VECTORS(kSiluGrad, silu_derivative_f32);
    WEFT_VECTORS(kGeluErfGrad, gelu_erf_derivative_f32);
    WEFT_VECTORS(kGeluTanhGrad, gelu_tanh_derivative_f32);
    default:
      WEFT_ASSERT(false);
  }
}

#undef WEFT_BINARY
#undef WEFT_VECTORS

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(binary_loop);

BinaryBlocks binary_blocks(BinaryOp op, DType a, DType b, DType y) {
  const auto loop_of = [&](DType type) { return HWY_DYNAMIC_DISPATCH(binary_loop)(op, type); };
  const bool is_bf16 = a == DType::bf16 && b == DType::bf16 && (y == DType::bf16 || is_test(op));
  DType type = is_bf16 ? DType::bf16 : arithmetic_type(a, b);
  BinaryLoop loop = loop_of(type);
  if (!loop) loop = loop_of(type = DType::f32);
  return {loop, type, is_test(op) ? DType::boolean : type};
}

void binary_cpu_blocks(const BinaryProblem& p) {
  const BinaryBlocks blocks = binary_blocks(p.op, p.a.dtype(), p.b.dtype(), p.y.dtype());
  const Walk walk({p.y, p.a, p.b});
  transform_blocks(
      walk, {p.y, blocks.result}, {{p.a, blocks.type}, {p.b, blocks.type}},
      [&](const void* a, const void* b, void* y, int64_t n) { blocks.loop(a, b, y, n, p.alpha); });
}

}  // namespace weft::kernels
#endif
