// One launch for all parameters (kernels/multi_tensor/tensor_list.cuh), 4 elements a thread at a
// time where the tensors allow it. Memory-bound. The order of operations is the header's, without
// contraction, so the bits are the CPU's.
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

template <class Acc, int n>
__device__ __forceinline__ void sgd_elements(const SgdConstants<Acc>& c, const SgdFields& f,
                                             int64_t i) {
  Acc g[n], p[n], b[n] = {};
  load(f.g, i, g);
  elements::load_as<Acc, n>(f.p, i, p);
  // A first step must not read what the buffer holds.
  if (c.has_momentum && !c.first_step) elements::load_as<Acc, n>(f.b, i, b);
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
  elements::store_as<Acc, n>(f.p, i, p);
  if constexpr (sizeof(Acc) == 4) store_narrow(f.narrow, i, p);
  if (c.has_momentum) elements::store_as<Acc, n>(f.b, i, b);
}

template <class Acc>
__global__ void __launch_bounds__(kListThreads)
    sgd_kernel(const __grid_constant__ TensorList<SgdFields> list,
               const __grid_constant__ SgdConstants<Acc> arguments, const OpenedGate gate) {
  if (gate.is_closed()) return;
  SgdConstants<Acc> constants = arguments;
  constants.scale_by(gate.coefficient());
  const ListEntry<SgdFields>& entry = list.of_chunk(blockIdx.x);
  if (entry.fields.p_norm) constants.take_rate_of(*entry.fields.p_norm, *entry.fields.g_norm);
  for_chunk_elements<4>(
      chunk_of(entry, blockIdx.x), entry.fields.aligned,
      [&](auto width, int64_t i) { sgd_elements<Acc, width()>(constants, entry.fields, i); });
}

template <class Acc>
void run(const SgdProblem& p) {
  const SgdConstants<Acc> constants(p);
  const bool has_momentum = constants.has_momentum;
  const double* const norms = p.layer_norms.defined() ? p.layer_norms.data<double>() : nullptr;
  const std::vector<Tensor> gradients = contiguous_list(p.gradients);
  const auto fields = [&](size_t i) {
    const Tensor buffer = has_momentum ? p.buffers[i] : Tensor();
    const Tensor narrow = p.narrow.empty() ? Tensor() : p.narrow[i];
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
    WEFT_LAUNCH(sgd_kernel<Acc>, list.chunks, kListThreads, 0, stream, list, constants,
                OpenedGate(p.gate));
  });
}

}  // namespace

void sgd_cuda_list(const SgdProblem& p) {
  p.dtype() == DType::f64 ? run<double>(p) : run<float>(p);
}

}  // namespace weft::kernels
