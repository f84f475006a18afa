// One launch for all parameters (kernels/multi_tensor/tensor_list.cuh), 4 elements a thread at a
// time where the tensors allow it. Memory-bound. A kernel is compiled for each dtype of parameters,
// so that none asks an element for it; gradients may be of another. The order of operations is the
// header's, without contraction, so the bits are the CPU's.
#include "core/stream.h"
#include "kernels/multi_tensor/chunks.h"
#include "kernels/multi_tensor/tensor_list.cuh"
#include "kernels/sgd/sgd.h"
#include "kernels/sgd/sgd_constants.h"

namespace weft::kernels {
namespace {

struct SgdFields {
  void *p, *b;  // b: null without momentum
  Numbers g, narrow;
  const double *p_norm, *g_norm;  // null without
  bool aligned;
};

/// T: what parameters and buffers are stored as.
template <class T, int n, class Acc>
__device__ __forceinline__ void sgd_elements(const SgdConstants<Acc>& c, const SgdFields& f,
                                             int64_t i) {
  Acc g[n], p[n], b[n] = {};
  load(f.g, i, g);
  elements::load_as<T, n>(f.p, i, p);
  // A first step must not read what the buffer holds.
  if (c.has_momentum && !c.first_step) elements::load_as<T, n>(f.b, i, b);
#pragma unroll
  for (int k = 0; k < n; ++k) {
    if (c.scales) g[k] = g[k] * c.gradient_scale;
    if (c.decays) g[k] = g[k] + c.weight_decay * p[k];
    if (c.has_momentum) {
      b[k] = c.first_step ? g[k] : b[k] * c.momentum + c.one_minus_dampening * g[k];
      g[k] = c.nesterov ? g[k] + c.momentum * b[k] : b[k];
    }
    p[k] = p[k] - c.lr * g[k];
  }
  elements::store_as<T, n>(f.p, i, p);
  if constexpr (std::is_same_v<T, float>) store_narrow(f.narrow, i, p);
  if (c.has_momentum) elements::store_as<T, n>(f.b, i, b);
}

template <class T, class Acc = ArithmeticOf<T>>
__global__ void __launch_bounds__(kListThreads)
    sgd_kernel(WEFT_GRID_CONSTANT(TensorList<SgdFields>) list,
               const __grid_constant__ SgdConstants<Acc> arguments, const OpenedGate gate) {
  if (gate.is_closed()) return;
  SgdConstants<Acc> constants = arguments;
  constants.scale_by(gate.coefficient());
  const ListEntry<SgdFields>& entry = list.of_chunk(blockIdx.x);
  if (entry.fields.p_norm) constants.take_rate_of(*entry.fields.p_norm, *entry.fields.g_norm);
  for_chunk_elements<4>(
      chunk_of(entry, blockIdx.x), entry.fields.aligned,
      [&](auto width, int64_t i) { sgd_elements<T, width()>(constants, entry.fields, i); });
}

template <class T>
void run(const SgdProblem& p) {
  using Acc = ArithmeticOf<T>;
  const SgdConstants<Acc> constants(p);
  const bool has_momentum = constants.has_momentum;
  const double* const norms = p.layer_norms.defined() ? p.layer_norms.data<double>() : nullptr;
  const std::vector<Tensor> gradients = contiguous_list(p.gradients);
  const auto fields = [&](size_t i) {
    const Tensor buffer = has_momentum ? p.buffers[i] : Tensor();
    const Tensor narrow = p.narrow.empty() ? Tensor() : p.narrow[i];
    WEFT_ASSERT(p.parameters[i].dtype() == p.dtype() &&
                (!has_momentum || buffer.dtype() == p.dtype()));
    const bool aligned = is_aligned(p.parameters[i], 4) && is_aligned(buffer, 4) &&
                         is_aligned(gradients[i], 4) && is_aligned(narrow, 4);
    return SgdFields{p.parameters[i].raw(),
                     has_momentum ? buffer.raw() : nullptr,
                     Numbers(gradients[i]),
                     Numbers(narrow),
                     norms ? norms + i : nullptr,
                     norms ? norms + p.parameters.size() + i : nullptr,
                     aligned};
  };
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  for_each_list<SgdFields>(p.parameters, fields, [&](const auto& list, uint32_t) {
    WEFT_LAUNCH(sgd_kernel<T>, list.chunks, kListThreads, 0, stream, list, constants,
                OpenedGate(p.gate));
  });
}

}  // namespace

void sgd_cuda_list(const SgdProblem& p) {
  with_stored_zero(p.dtype(), [&](auto zero) { run<decltype(zero)>(p); });
}

}  // namespace weft::kernels
