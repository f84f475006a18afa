// A block for each chunk of some tensor (kernels/multi_tensor/tensor_list.cuh) scales it and notes
// whether all of it was finite; one more block joins the notes. Memory-bound.
#include <span>

#include "core/stream.h"
#include "kernels/multi_tensor/tensor_list.cuh"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"

namespace weft::kernels {
namespace {

struct ScaleFields {
  Elements x;
  bool aligned;
};

/// Returns whether an element is infinite or NaN.
template <class Acc, int n>
__device__ __forceinline__ bool scale_elements(const Elements& x, int64_t i, Acc factor,
                                               bool writes) {
  Acc values[n];
  load(x, i, values);
  bool nonfinite = false;
#pragma unroll
  for (int k = 0; k < n; ++k) {
    // x - x is 0 for a finite x alone.
    nonfinite = nonfinite || values[k] - values[k] != 0;
    values[k] *= factor;
  }
  if (writes) store(x, i, values);
  return nonfinite;
}

template <class Acc>
__device__ bool scale_chunk(const ScaleFields& f, const Chunk& chunk, Acc factor, bool writes) {
  bool nonfinite = false;
  for_chunk_elements<8>(chunk, f.aligned, [&](auto width, int64_t i) {
    nonfinite |= scale_elements<Acc, width()>(f.x, i, factor, writes);
  });
  return nonfinite;
}

__global__ void __launch_bounds__(kListThreads)
    scale_kernel(const __grid_constant__ TensorList<ScaleFields> list, double factor, int* notes) {
  const ListEntry<ScaleFields>& entry = list.of_chunk(blockIdx.x);
  const Chunk chunk = chunk_of(entry, blockIdx.x);
  const bool writes = factor != 1;
  const bool nonfinite =
      entry.fields.x.dtype == DType::f64
          ? scale_chunk<double>(entry.fields, chunk, factor, writes)
          : scale_chunk<float>(entry.fields, chunk, static_cast<float>(factor), writes);
  const int any = __syncthreads_or(nonfinite);
  if (threadIdx.x == 0 && notes) notes[blockIdx.x] = any != 0;
}

__global__ void __launch_bounds__(kListThreads)
    join_notes_kernel(const int* notes, int64_t count, Elements nonfinite) {
  int any = 0;
  for (int64_t i = threadIdx.x; i < count; i += kListThreads) any |= notes[i];
  any = __syncthreads_or(any);
  if (threadIdx.x == 0) store_one(nonfinite, 0, static_cast<int64_t>(any != 0));
}

}  // namespace

void multi_tensor_scale_cuda_list(const MultiTensorScaleProblem& p) {
  const int64_t chunks = count_chunks(p.tensors);
  const bool asked = p.nonfinite.defined();
  const Tensor notes = Tensor::empty({asked ? chunks : 0}, DType::i32, p.device());
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  const auto fields = [&](size_t i) {
    return ScaleFields{Elements(p.tensors[i]), is_aligned(p.tensors[i], 8)};
  };
  for_each_list<ScaleFields>(p.tensors, fields, [&](const auto& list, uint32_t first_chunk) {
    WEFT_LAUNCH(scale_kernel, list.chunks, kListThreads, 0, stream, list, p.factor,
                asked ? notes.data<int32_t>() + first_chunk : nullptr);
  });
  if (asked) {
    WEFT_LAUNCH(join_notes_kernel, 1, kListThreads, 0, stream, notes.data<int32_t>(), chunks,
                Elements(p.nonfinite));
  }
}

}  // namespace weft::kernels
