// Blocks of 1024 elements in the arithmetic type (kernels/elementwise), one loop per op and type;
// arithmetic on bf16 alone skips the conversion of whole blocks.
// Memory-bound but for pow and integers' division.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/binary/binary_cpu_blocks.cc"
#include "core/simd/targets.h"

#include "kernels/binary/binary.h"
#include "kernels/binary/binary_loops.h"
#include "kernels/elementwise/block_io.h"
#include "kernels/elementwise/loops_inl.h"
#include "kernels/simd/math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

using Loops = ElementLoops<const void*, const void*>;

/// The loop of an op; of bf16 none where the arithmetic is worth more than the conversion.
BinaryLoop binary_loop(BinaryOp op, DType type) {
  if (BinaryLoop loop = binary_scalar_loop(op, type)) return loop;
  switch (op) {
    case BinaryOp::kAdd:
      return Loops::plain(type, [](auto a, auto b, auto) { return wrapping(a) + wrapping(b); });
    case BinaryOp::kAddScaled:
      return Loops::plain(type, [](auto a, auto b, auto alpha) {
        return wrapping(a) + wrapping(b) * wrapping(alpha);
      });
    case BinaryOp::kSub:
      return Loops::plain(type, [](auto a, auto b, auto) { return wrapping(a) - wrapping(b); });
    case BinaryOp::kMul:
      return Loops::plain(type, [](auto a, auto b, auto) { return wrapping(a) * wrapping(b); });
    case BinaryOp::kDiv:
      return Loops::floating(type, [](auto a, auto b, auto) { return a / b; });
    case BinaryOp::kMaximum:
      return Loops::plain(type, [](auto a, auto b, auto) { return a > b || a != a ? a : b; });
    case BinaryOp::kMinimum:
      return Loops::plain(type, [](auto a, auto b, auto) { return a < b || a != a ? a : b; });
    case BinaryOp::kEq:
      return Loops::plain(type, [](auto a, auto b, auto) { return a == b; });
    case BinaryOp::kNe:
      return Loops::plain(type, [](auto a, auto b, auto) { return a != b; });
    case BinaryOp::kLt:
      return Loops::plain(type, [](auto a, auto b, auto) { return a < b; });
    case BinaryOp::kLe:
      return Loops::plain(type, [](auto a, auto b, auto) { return a <= b; });
    case BinaryOp::kGt:
      return Loops::plain(type, [](auto a, auto b, auto) { return a > b; });
    case BinaryOp::kGe:
      return Loops::plain(type, [](auto a, auto b, auto) { return a >= b; });
    case BinaryOp::kLogicalAnd:
      return Loops::plain(type, [](auto a, auto b, auto) -> bool { return (a != 0) & (b != 0); });
    case BinaryOp::kLogicalOr:
      return Loops::plain(type, [](auto a, auto b, auto) -> bool { return (a != 0) | (b != 0); });
    case BinaryOp::kLogicalXor:
      return Loops::plain(type, [](auto a, auto b, auto) { return (a != 0) != (b != 0); });
    case BinaryOp::kReluGrad:
      return Loops::floating(type, [](auto a, auto b, auto) { return a > 0 ? b : 0; });
    case BinaryOp::kLeakyReluGrad:
      return Loops::floating(type,
                             [](auto a, auto b, auto alpha) { return a > 0 ? b : alpha * b; });
    case BinaryOp::kSigmoidGrad:
      return Loops::floating(type, [](auto a, auto b, auto) { return b * (a * (1 - a)); });
    case BinaryOp::kTanhGrad:
      return Loops::floating(type, [](auto a, auto b, auto) { return b * ((1 - a) * (1 + a)); });
    default:
      break;
  }
  if (type == DType::bf16) return nullptr;
  switch (op) {
    case BinaryOp::kSiluGrad:
      return Loops::vectors<silu_derivative_f32>;
    case BinaryOp::kGeluErfGrad:
      return Loops::vectors<gelu_erf_derivative_f32>;
    case BinaryOp::kGeluTanhGrad:
      return Loops::vectors<gelu_tanh_derivative_f32>;
    default:
      WEFT_ASSERT(false);
  }
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::kernels {

HWY_EXPORT(binary_loop);

void binary_cpu_blocks(const BinaryProblem& p) {
  const auto loop_of = [&](DType type) { return HWY_DYNAMIC_DISPATCH(binary_loop)(p.op, type); };
  const bool is_bf16 = p.a.dtype() == DType::bf16 && p.b.dtype() == DType::bf16 &&
                       (p.y.dtype() == DType::bf16 || is_test(p.op));
  DType type = is_bf16 ? DType::bf16 : arithmetic_type(p.a.dtype(), p.b.dtype());
  BinaryLoop loop = loop_of(type);
  if (!loop) loop = loop_of(type = DType::f32);
  const Walk walk({p.y, p.a, p.b});
  transform_blocks(
      walk, {p.y, is_test(p.op) ? DType::boolean : type}, {{p.a, type}, {p.b, type}},
      [&](const void* a, const void* b, void* y, int64_t n) { loop(a, b, y, n, p.alpha); });
}

}  // namespace weft::kernels
#endif
