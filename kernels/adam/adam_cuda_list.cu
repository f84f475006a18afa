// One launch for all parameters (kernels/multi_tensor/tensor_list.cuh), 4 elements a thread at a
// time where the tensors allow it. Memory-bound: 28 bytes a parameter with f32 gradients, 30 with a
// narrow copy, 14 where all is 16 bits wide. A kernel is compiled for each dtype of parameters, so
// that none asks an element for it; gradients may be of another. The order of operations is the
// header's, without contraction, so the bits are the CPU's.
#include "core/stream.h"
#include "kernels/adam/adam.h"
#include "kernels/adam/adam_constants.h"
#include "kernels/multi_tensor/chunks.h"
#include "kernels/multi_tensor/tensor_list.cuh"

namespace weft::kernels {
namespace {

struct AdamFields {
  void *p, *m, *v;
  Numbers g, narrow;
  bool aligned;  // vectors of 4 are allowed
};

template <class Acc>
__device__ __forceinline__ void adam_update(const AdamConstants<Acc>& c, Acc g, Acc& p, Acc& m,
                                            Acc& v) {
  if (c.scales) g = g * c.gradient_scale;
  if (c.decays) p = p * c.decay;
  if (c.adds_l2) g = g + c.l2 * p;
  m = c.small_beta1 ? g - (g - m) * c.beta1 : m + c.one_minus_beta1 * (g - m);
  v = v * c.beta2 + (c.one_minus_beta2 * g) * g;
  p = p - (c.step_size * m) / (std::sqrt(v) / c.root_correction + c.eps);
}

/// T: what parameters and moments are stored as.
template <class T, int n, class Acc>
__device__ __forceinline__ void adam_elements(const AdamConstants<Acc>& c, const AdamFields& f,
                                              int64_t i) {
  Acc g[n], p[n], m[n], v[n];
  load(f.g, i, g);
  elements::load_as<T, n>(f.p, i, p);
  elements::load_as<T, n>(f.m, i, m);
  elements::load_as<T, n>(f.v, i, v);
#pragma unroll
  for (int k = 0; k < n; ++k) adam_update(c, g[k], p[k], m[k], v[k]);
  elements::store_as<T, n>(f.p, i, p);
  if constexpr (std::is_same_v<T, float>) store_narrow(f.narrow, i, p);
  elements::store_as<T, n>(f.m, i, m);
  elements::store_as<T, n>(f.v, i, v);
}

/// Blocks that are to share a multiprocessor, by the bytes of an element. For f32 unasked ptxas
/// takes 56 registers a thread of sm_90, and 48, for five blocks, without a spill; 16-bit elements,
/// which are unpacked, would spill there.
constexpr int blocks_for(size_t bytes) { return bytes == 4 ? 5 : bytes == 2 ? 4 : 1; }

template <class T, class Acc = ArithmeticOf<T>>
__global__ void __launch_bounds__(kListThreads, blocks_for(sizeof(T)))
    adam_kernel(WEFT_GRID_CONSTANT(TensorList<AdamFields>) list,
                const __grid_constant__ AdamConstants<Acc> arguments,
                const AdamConstants<Acc>* captured, const OpenedGate gate) {
  if (gate.is_closed()) return;
  AdamConstants<Acc> constants = captured ? *captured : arguments;
  constants.scale_by(gate.coefficient());
  const ListEntry<AdamFields>& entry = list.of_chunk(blockIdx.x);
  for_chunk_elements<4>(
      chunk_of(entry, blockIdx.x), entry.fields.aligned,
      [&](auto width, int64_t i) { adam_elements<T, width()>(constants, entry.fields, i); });
}

template <class T>
void run(const AdamProblem& p) {
  using Acc = ArithmeticOf<T>;
  const AdamConstants<Acc> constants(p);
  const auto* captured =
      p.constants.defined() ? static_cast<const AdamConstants<Acc>*>(p.constants.raw()) : nullptr;
  const OpenedGate gate = p.gate;
  const std::vector<Tensor> gradients = contiguous_list(p.gradients);
  const auto fields = [&](size_t i) {
    WEFT_ASSERT(p.parameters[i].dtype() == p.dtype() && p.m[i].dtype() == p.dtype() &&
                p.v[i].dtype() == p.dtype());
    const Tensor narrow = p.narrow.empty() ? Tensor() : p.narrow[i];
    const bool aligned = is_aligned(p.parameters[i], 4) && is_aligned(p.m[i], 4) &&
                         is_aligned(p.v[i], 4) && is_aligned(gradients[i], 4) &&
                         is_aligned(narrow, 4);
    return AdamFields{p.parameters[i].raw(), p.m[i].raw(),    p.v[i].raw(),
                      Numbers(gradients[i]), Numbers(narrow), aligned};
  };
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  for_each_list<AdamFields>(p.parameters, fields, [&](const auto& list, uint32_t) {
    WEFT_LAUNCH(adam_kernel<T>, list.chunks, kListThreads, 0, stream, list, constants, captured,
                gate);
  });
}

}  // namespace

void adam_cuda_list(const AdamProblem& p) {
  with_stored_zero(p.dtype(), [&](auto zero) { run<decltype(zero)>(p); });
}

}  // namespace weft::kernels
