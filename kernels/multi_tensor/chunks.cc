#include "kernels/multi_tensor/chunks.h"

#include <algorithm>
#include <cmath>

#include "kernels/copy/copy.h"

namespace weft::kernels {

std::vector<TensorChunk> tensor_chunks(std::span<const Tensor> tensors) {
  std::vector<TensorChunk> chunks;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t n = tensors[t].numel();
    for (int64_t begin = 0; begin < n; begin += kChunkElements) {
      chunks.push_back({static_cast<int64_t>(t), begin, std::min(n, begin + kChunkElements)});
    }
  }
  return chunks;
}

std::vector<int64_t> chunk_tasks(std::span<const TensorChunk> chunks) {
  std::vector<int64_t> tasks;
  int64_t elements = kChunkElements;  // of the task so far; the first chunk begins one
  for (size_t c = 0; c < chunks.size(); ++c) {
    const int64_t count = chunks[c].end - chunks[c].begin;
    if (elements + count > kChunkElements) {
      tasks.push_back(static_cast<int64_t>(c));
      elements = 0;
    }
    elements += count;
  }
  tasks.push_back(static_cast<int64_t>(chunks.size()));
  return tasks;
}

std::vector<Tensor> contiguous_list(std::span<const Tensor> tensors) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) result.push_back(contiguous(tensor));
  return result;
}

void store_norm(std::span<const double> squares, const Tensor& norm) {
  double total = 0;
  for (double sum : squares) total += sum;
  const double root = std::sqrt(total);
  if (norm.dtype() == DType::f64) {
    *norm.data<double>() = root;
  } else {
    *norm.data<float>() = static_cast<float>(root);
  }
}

void assert_matching(std::span<const Tensor> tensors, std::span<const Tensor> others) {
  WEFT_ASSERT(tensors.size() == others.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    WEFT_ASSERT(others[i].is_contiguous());
    WEFT_ASSERT(others[i].shape() == tensors[i].shape());
    WEFT_ASSERT(others[i].device() == tensors[i].device());
  }
}

void assert_narrow(std::span<const Tensor> parameters, std::span<const Tensor> copies) {
  WEFT_ASSERT(copies.empty() || copies.size() == parameters.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!copies[i].defined()) continue;
    WEFT_ASSERT(parameters[i].dtype() == DType::f32);
    WEFT_ASSERT(copies[i].dtype() == DType::bf16 || copies[i].dtype() == DType::f16);
    assert_matching(parameters.subspan(i, 1), copies.subspan(i, 1));
  }
}

}  // namespace weft::kernels
