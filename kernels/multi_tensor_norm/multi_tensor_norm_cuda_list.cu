// Squares are summed in f64 by one block for each chunk of some tensor
// (kernels/multi_tensor/tensor_list.cuh); one more block, or one for each tensor, adds the chunks'
// sums, each thread every 1024th in order. Memory-bound.
#include "core/stream.h"
#include "kernels/multi_tensor/chunks.h"
#include "kernels/multi_tensor/tensor_list.cuh"
#include "kernels/multi_tensor_norm/multi_tensor_norm.h"

namespace weft::kernels {
namespace {

struct NormFields {
  Elements x;
  double* norm;  // of this tensor alone, or null
  bool aligned;
};

template <int n>
__device__ __forceinline__ double squares(const Elements& x, int64_t i) {
  double values[n], total = 0;
  load(x, i, values);
#pragma unroll
  for (int k = 0; k < n; ++k) total += values[k] * values[k];
  return total;
}

__global__ void __launch_bounds__(kListThreads)
    chunk_squares_kernel(WEFT_GRID_CONSTANT(TensorList<NormFields>) list, double* sums) {
  const ListEntry<NormFields>& entry = list.of_chunk(blockIdx.x);
  double total = 0;
  for_chunk_elements<8>(
      chunk_of(entry, blockIdx.x), entry.fields.aligned,
      [&](auto width, int64_t i) { total += squares<width()>(entry.fields.x, i); });
  total = block_sum<kListThreads>(total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

constexpr int kJoinThreads = 1024;

__global__ void __launch_bounds__(kJoinThreads)
    join_squares_kernel(const double* sums, int64_t count, Elements norm) {
  const double total = sum_of_chunks<kJoinThreads>(sums, count);
  if (threadIdx.x == 0) store_one(norm, 0, std::sqrt(total));
}

__global__ void __launch_bounds__(kJoinThreads)
    join_each_kernel(WEFT_GRID_CONSTANT(TensorList<NormFields>) list, const double* sums) {
  const ListEntry<NormFields>& entry = list.entries[blockIdx.x];
  const double total = sum_of_chunks<kJoinThreads>(sums + entry.first_chunk,
                                                   (entry.numel + kListChunk - 1) / kListChunk);
  if (threadIdx.x == 0) *entry.fields.norm = std::sqrt(total);
}

}  // namespace

void multi_tensor_norm_cuda_list(const MultiTensorNormProblem& p) {
  const std::vector<Tensor> tensors = contiguous_list(p.tensors);
  const int64_t chunks = count_chunks(tensors);
  const Tensor sums = Tensor::empty({chunks}, DType::f64, p.device());
  const runtime::StreamHandle stream = current_stream_handle(p.device());
  const auto fields = [&](size_t i) {
    return NormFields{Elements(tensors[i]), p.is_of_each() ? p.norm.data<double>() + i : nullptr,
                      is_aligned(tensors[i], 8)};
  };
  // Lists leave out tensors without elements.
  if (p.is_of_each()) {
    runtime::set_bytes(p.device().index, p.norm.raw(), 0, p.norm.nbytes(), stream);
  }
  for_each_list<NormFields>(tensors, fields, [&](const auto& list, uint32_t first_chunk) {
    WEFT_LAUNCH(chunk_squares_kernel, list.chunks, kListThreads, 0, stream, list,
                sums.data<double>() + first_chunk);
    if (!p.is_of_each()) return;
    WEFT_LAUNCH(join_each_kernel, list.count, kJoinThreads, 0, stream, list,
                sums.data<double>() + first_chunk);
  });
  if (p.is_of_each()) return;
  WEFT_LAUNCH(join_squares_kernel, 1, kJoinThreads, 0, stream, sums.data<double>(), chunks,
              Elements(p.norm));
}

}  // namespace weft::kernels
