// Squares summed for each chunk of the list (kernels/multi_tensor/squares_inl.h), then the chunks
// in order: the same bits on every instruction set. The limiter is memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/multi_tensor_norm/multi_tensor_norm_cpu_highway.cc"
#include "core/simd/targets_inl.h"

#include "core/view.h"
#include "kernels/multi_tensor/chunks.h"
#include "kernels/multi_tensor/squares_inl.h"
#include "kernels/multi_tensor_norm/multi_tensor_norm.h"
#include "kernels/simd/variant.h"

HWY_BEFORE_NAMESPACE();
namespace weft::kernels::HWY_NAMESPACE {
namespace {

template <class Acc>
double sum_of_squares(const Tensor& tensor, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 1024;
  HWY_ALIGN Acc buffer[kBlock];
  SumOfSquares squares;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t n = std::min(kBlock, end - first);
    squares.add(read_row(tensor.dtype(), tensor.raw(), first, 1, n, buffer), n);
  }
  return squares.total();
}

void multi_tensor_norm_chunks(const MultiTensorNormProblem& p) {
  if (p.is_of_each()) {
    for (size_t i = 0; i < p.tensors.size(); ++i) {
      const auto place = static_cast<int64_t>(i);
      multi_tensor_norm_chunks({.tensors = {p.tensors[i]}, .norm = view::select(p.norm, 0, place)});
    }
    return;
  }
  const std::vector<Tensor> tensors = contiguous_list(p.tensors);
  const ChunkTasks tasks(tensors);
  std::vector<double> sums(tasks.count());
  tasks.for_each([&](int64_t task, const TensorChunk& chunk) {
    const Tensor& tensor = tensors[chunk.tensor];
    const auto sum = tensor.dtype() == DType::f64 ? sum_of_squares<double> : sum_of_squares<float>;
    sums[task] += sum(tensor, chunk.begin, chunk.end);
  });
  store_norm(sums, p.norm);
}

}  // namespace
}  // namespace weft::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
WEFT_HIGHWAY_VARIANT(multi_tensor_norm_cpu_highway, MultiTensorNormProblem,
                     multi_tensor_norm_chunks)
#endif
