// A block for each chunk of some tensor (kernels/multi_tensor/tensor_list.cuh) scales it, notes
// whether all of it was finite, and sums its squares in f64; one more block joins notes and sums in
// a fixed order. Memory-bound: one read and one write of each element.
#include "core/stream.h"
#include "kernels/multi_tensor/tensor_list.cuh"
#include "kernels/multi_tensor_scale/multi_tensor_scale.h"

namespace weft::kernels {
namespace {

struct ScaleFields {
  Elements x;
  bool aligned;
};

/// What the chunks leave for the last block; null where nobody asked.
struct ScaleNotes {
  int* nonfinite = nullptr;
  double* squares = nullptr;
};

/// What a thread met.
struct Met {
  bool nonfinite = false;
  double squares = 0;
};

template <class Acc, int n>
__device__ __forceinline__ void scale_elements(const Elements& x, int64_t i, Acc factor,
                                               bool writes, bool wants_norm, Met& met) {
  Acc values[n];
  load(x, i, values);
#pragma unroll
  for (int k = 0; k < n; ++k) {
    // x - x is 0 for a finite x alone.
    met.nonfinite = met.nonfinite || values[k] - values[k] != 0;
    if (writes) values[k] *= factor;
  }
  if (writes) store(x, i, values);
  if (!wants_norm) return;
  // The norm is that of the elements as they were rounded.
  if (writes && sizeof(Acc) == 4 && x.dtype != DType::f32) load(x, i, values);
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const auto v = static_cast<double>(values[k]);
    met.squares += v * v;
  }
}

template <class Acc>
__device__ Met scale_chunk(const ScaleFields& f, const Chunk& chunk, Acc factor, bool writes,
                           bool wants_norm) {
  Met met;
  for_chunk_elements<4>(chunk, f.aligned, [&](auto width, int64_t i) {
    scale_elements<Acc, width()>(f.x, i, factor, writes, wants_norm, met);
  });
  return met;
}

__global__ void __launch_bounds__(kListThreads)
    scale_kernel(WEFT_GRID_CONSTANT(TensorList<ScaleFields>) list, double factor,
                 const float* factor_from, ScaleNotes notes) {
  if (factor_from) factor = *factor_from;
  const ListEntry<ScaleFields>& entry = list.of_chunk(blockIdx.x);
  const Chunk chunk = chunk_of(entry, blockIdx.x);
  const bool writes = factor != 1, wants_norm = notes.squares != nullptr;
  const Met met =
      entry.fields.x.dtype == DType::f64
          ? scale_chunk<double>(entry.fields, chunk, factor, writes, wants_norm)
          : scale_chunk<float>(entry.fields, chunk, static_cast<float>(factor), writes, wants_norm);
  if (notes.nonfinite) {
    const int any = __syncthreads_or(met.nonfinite);
    if (threadIdx.x == 0) notes.nonfinite[blockIdx.x] = any != 0;
  }
  if (wants_norm) {
    const double squares = block_sum<kListThreads>(met.squares);
    if (threadIdx.x == 0) notes.squares[blockIdx.x] = squares;
  }
}

constexpr int kJoinThreads = 1024;

__global__ void __launch_bounds__(kJoinThreads)
    join_scale_kernel(ScaleNotes notes, int64_t count, Elements found_inf, Elements norm) {
  if (found_inf) {
    int any = 0;
    for (int64_t i = threadIdx.x; i < count; i += kJoinThreads) any |= notes.nonfinite[i];
    any = __syncthreads_or(any);
    if (threadIdx.x == 0) store_one(found_inf, 0, any != 0 ? 1.0f : 0.0f);
  }
  if (norm) {
    const double squares = sum_of_chunks<kJoinThreads>(notes.squares, count);
    if (threadIdx.x == 0) store_one(norm, 0, std::sqrt(squares));
  }
}

}  // namespace

void multi_tensor_scale_cuda_list(const MultiTensorScaleProblem& p) {
  const int64_t chunks = count_chunks(p.tensors);
  const bool wants_check = p.found_inf.defined(), wants_norm = p.norm.defined();
  const Tensor nonfinite = Tensor::empty({wants_check ? chunks : 0}, DType::i32, p.device());
  const Tensor squares = Tensor::empty({wants_norm ? chunks : 0}, DType::f64, p.device());
  ScaleNotes notes;
  if (wants_check) notes.nonfinite = nonfinite.data<int32_t>();
  if (wants_norm) notes.squares = squares.data<double>();
  const float* const factor_from = p.factor_from.defined() ? p.factor_from.data<float>() : nullptr;
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  const auto fields = [&](size_t i) {
    return ScaleFields{Elements(p.tensors[i]), is_aligned(p.tensors[i], 4)};
  };
  for_each_list<ScaleFields>(p.tensors, fields, [&](const auto& list, uint32_t first_chunk) {
    ScaleNotes of_list;
    if (wants_check) of_list.nonfinite = notes.nonfinite + first_chunk;
    if (wants_norm) of_list.squares = notes.squares + first_chunk;
    WEFT_LAUNCH(scale_kernel, list.chunks, kListThreads, 0, stream, list, p.factor, factor_from,
                of_list);
  });
  if (wants_check || wants_norm) {
    WEFT_LAUNCH(join_scale_kernel, 1, kJoinThreads, 0, stream, notes, chunks, Elements(p.found_inf),
                Elements(p.norm));
  }
}

}  // namespace weft::kernels
