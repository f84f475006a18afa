// Blocks of 1024 elements in the arithmetic type (kernels/elementwise), one loop per op and type;
// arithmetic on bf16 alone skips the conversion of whole blocks.
// Memory-bound but for pow and integers' division.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/binary/binary_cpu_blocks.cc"
#include "core/simd/targets_inl.h"

#include "kernels/binary/binary.h"
#include "kernels/elementwise/block_io.h"
#include "kernels/elementwise/loops_inl.h"
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

/// The loop of an op; of bf16 none where the arithmetic is worth more than the conversion.
BinaryLoop binary_loop(BinaryOp op, DType type) {
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
