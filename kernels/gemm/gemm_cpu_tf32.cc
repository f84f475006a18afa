// TF32 on a CPU: the operands lose their low bits, then the product is an ordinary one in f32, in
// which products of 11-bit significands are exact. Slower than f32 by the copies of the operands:
// it shows what TF32 does to a result, it saves no time.
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/tf32_operand.h"

namespace weft::kernels {

void gemm_cpu_tf32(const GemmProblem& problem) {
  GemmProblem p = problem;
  p.a = tf32_operand(p.a, p.numerics.tf32);
  p.b = tf32_operand(p.b, p.numerics.tf32);
  p.numerics = {};
  gemm(p);
}

}  // namespace weft::kernels
