// An interpreter: a thread takes 4 neighbouring elements of dense operands, or one of others, and
// walks through the program. All threads are at the same step, so that its switches do not diverge.
// Values lie in shared memory, a column for each thread, since registers have no index; nobody
// reads another's, so nothing has to wait.
// Memory-bound as long as steps cost less than the operands' ways: some ten of them for each.
#include <algorithm>

#include "core/stream.h"
#include "kernels/binary/binary_function.cuh"
#include "kernels/device/elements.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/elementwise/walk.h"
#include "kernels/fused/fused.h"
#include "kernels/unary/unary_function.cuh"

namespace weft::kernels {
namespace {

constexpr int kThreads = 128;
constexpr size_t kMaxShared = 48 * 1024;  // what every device gives a block unasked

enum class StepKind : uint8_t { kUnary, kBinary, kWhere, kCast };

struct DeviceStep {
  StepKind kind;
  uint8_t op;
  DType dtype;
  uint8_t slots[3];  // of the operands
  uint8_t slot;      // of the result
  int8_t output;     // that it also is; -1: none
  double alpha;
};

struct FusedArguments {
  int inputs, steps, dims;
  int64_t numel, shape[kMaxDims];
  Elements operands[kMaxFusedOperands];  // the inputs, then the outputs
  int64_t strides[kMaxFusedOperands][kMaxDims];
  uint8_t slots[kMaxFusedOperands];  // of the inputs
  bool is_constant[kMaxFusedOperands];
  DeviceStep program[kMaxFusedSteps];
};

/// x as a tensor of the dtype holds it.
template <class Acc>
__device__ Acc as_held(DType dtype, Acc x) {
  if (dtype == DType::boolean) return x != 0 ? Acc{1} : Acc{0};
  if (dtype == DType::f32) return static_cast<Acc>(static_cast<float>(x));
  return rounded_to(dtype, x);
}

/// Where element i of the walk lies in an operand.
template <class Index>
__device__ int64_t offset_of(const FusedArguments& p, int operand, int64_t i) {
  int64_t offset = 0;
  Index rest = static_cast<Index>(i);
  for (int d = p.dims - 1; d >= 0; --d) {
    const Index size = static_cast<Index>(p.shape[d]);
    offset += static_cast<int64_t>(rest % size) * p.strides[operand][d];
    rest /= size;
  }
  return offset;
}

/// The program for n elements from i on, which lie side by side in every operand if n > 1.
template <class Acc, int n, int stride, class Index>
__device__ void run_program(const FusedArguments& p, Acc* column, int64_t i) {
  // A stride of several: the last elements of operands that are dense.
  const auto place = [&](int operand) { return stride > 1 ? i : offset_of<Index>(p, operand, i); };
  const auto get = [&](int slot, Acc(&x)[n]) {
#pragma unroll
    for (int k = 0; k < n; ++k) x[k] = column[slot * kThreads * stride + k];
  };
  const auto put = [&](int slot, const Acc(&x)[n]) {
#pragma unroll
    for (int k = 0; k < n; ++k) column[slot * kThreads * stride + k] = x[k];
  };
  for (int k = 0; k < p.inputs; ++k) {
    Acc x[n];
    if (p.is_constant[k]) {
      x[0] = load_one<Acc>(p.operands[k], 0);
#pragma unroll
      for (int j = 1; j < n; ++j) x[j] = x[0];
    } else {
      load(p.operands[k], place(k), x);
    }
    put(p.slots[k], x);
  }
  for (int s = 0; s < p.steps; ++s) {
    const DeviceStep& step = p.program[s];
    Acc y[n];
    if (step.kind == StepKind::kUnary) {
      Acc x[1][n];
      get(step.slots[0], x[0]);
      UnaryFunction{static_cast<UnaryOp>(step.op), step.alpha}(x, y);
    } else if (step.kind == StepKind::kBinary) {
      Acc x[2][n];
      get(step.slots[0], x[0]);
      get(step.slots[1], x[1]);
      BinaryFunction{static_cast<BinaryOp>(step.op), step.alpha}(x, y);
    } else if (step.kind == StepKind::kWhere) {
      Acc condition[n], a[n];
      get(step.slots[0], condition);
      get(step.slots[1], a);
      get(step.slots[2], y);
#pragma unroll
      for (int k = 0; k < n; ++k) y[k] = condition[k] != 0 ? a[k] : y[k];
    } else {
      get(step.slots[0], y);
    }
#pragma unroll
    for (int k = 0; k < n; ++k) y[k] = as_held(step.dtype, y[k]);
    put(step.slot, y);
    if (step.output >= 0) {
      const int operand = p.inputs + step.output;
      store(p.operands[operand], place(operand), y);
    }
  }
}

/// With kVector > 1 thread t of the grid owns the vectors t, t + threads, ..., and the first
/// threads own the ragged end.
template <class Acc, int kVector, class Index>
__global__ void __launch_bounds__(kThreads) fused_kernel(const __grid_constant__ FusedArguments p) {
  WEFT_DYNAMIC_SHARED(Acc, memory);
  Acc* const column = memory + threadIdx.x * kVector;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t whole = p.numel / kVector * kVector;
  for (int64_t i = thread * kVector; i < whole; i += threads * kVector) {
    run_program<Acc, kVector, kVector, Index>(p, column, i);
  }
  if constexpr (kVector > 1) {
    if (whole + thread < p.numel) run_program<Acc, 1, kVector, Index>(p, column, whole + thread);
  }
}

DeviceStep device_step(const FusedStep& step, const FusedRegisters& registers) {
  DeviceStep result = {
      .kind = StepKind::kCast, .dtype = step.dtype, .output = -1, .alpha = step.alpha};
  if (const auto* unary = std::get_if<UnaryOp>(&step.op)) {
    result.kind = StepKind::kUnary;
    result.op = static_cast<uint8_t>(*unary);
  } else if (const auto* binary = std::get_if<BinaryOp>(&step.op)) {
    result.kind = StepKind::kBinary;
    result.op = static_cast<uint8_t>(*binary);
  } else if (std::get<MoveOp>(step.op) == MoveOp::kWhere) {
    result.kind = StepKind::kWhere;
  }
  for (int k = 0; k < operands_of(step); ++k) {
    result.slots[k] = static_cast<uint8_t>(registers.of[step.operands[k]]);
  }
  return result;
}

/// Fills p and says whether its operands lie side by side in one order, whole vectors aligned.
bool fill_arguments(const FusedProblem& problem, const FusedRegisters& registers, int vector,
                    FusedArguments& p) {
  std::vector<Tensor> tensors = problem.inputs;
  tensors.insert(tensors.end(), problem.outputs.begin(), problem.outputs.end());
  const Walk walk(tensors);
  p.inputs = static_cast<int>(problem.inputs.size());
  p.steps = static_cast<int>(problem.steps.size());
  p.dims = walk.shape().size();
  p.numel = walk.numel();
  std::ranges::copy(walk.shape(), p.shape);
  bool dense = true;
  for (size_t k = 0; k < tensors.size(); ++k) {
    p.operands[k] = Elements(tensors[k]);
    std::ranges::copy(walk.strides(static_cast<int>(k)), p.strides[k]);
    p.is_constant[k] = walk.is_constant(static_cast<int>(k));
    dense = dense && (p.is_constant[k] ||
                      (walk.is_dense(static_cast<int>(k)) && is_aligned(tensors[k], vector)));
  }
  for (int k = 0; k < p.inputs; ++k) p.slots[k] = static_cast<uint8_t>(registers.of[k]);
  for (int s = 0; s < p.steps; ++s) {
    p.program[s] = device_step(problem.steps[s], registers);
    p.program[s].slot = static_cast<uint8_t>(registers.of[p.inputs + s]);
    const auto output = std::ranges::find(problem.results, p.inputs + s);
    if (output != problem.results.end()) {
      p.program[s].output = static_cast<int8_t>(output - problem.results.begin());
    }
  }
  return dense;
}

template <class Acc>
void run(const FusedProblem& problem) {
  constexpr int kVector = 4;
  const FusedRegisters registers = fused_registers(problem);
  const size_t bytes = registers.count * kThreads * sizeof(Acc);
  WEFT_ASSERT(bytes <= kMaxShared);
  FusedArguments p = {};
  const bool dense = fill_arguments(problem, registers, kVector, p);
  const runtime::StreamHandle stream = current_stream_handle(problem.device());
  if (dense && kVector * bytes <= kMaxShared) {
    WEFT_LAUNCH((fused_kernel<Acc, kVector, uint32_t>), blocks_for(p.numel, kThreads * kVector),
                kThreads, kVector * bytes, stream, p);
  } else if (p.numel < int64_t{1} << 31) {
    WEFT_LAUNCH((fused_kernel<Acc, 1, uint32_t>), blocks_for(p.numel, kThreads), kThreads, bytes,
                stream, p);
  } else {
    WEFT_LAUNCH((fused_kernel<Acc, 1, uint64_t>), blocks_for(p.numel, kThreads), kThreads, bytes,
                stream, p);
  }
}

}  // namespace

void fused_cuda_elements(const FusedProblem& p) {
  if (p.outputs[0].numel() == 0) return;
  bool f64 = false;
  for (int v = 0; v < static_cast<int>(p.inputs.size() + p.steps.size()); ++v) {
    f64 = f64 || p.dtype_of(v) == DType::f64;
  }
  f64 ? run<double>(p) : run<float>(p);
}

}  // namespace weft::kernels
