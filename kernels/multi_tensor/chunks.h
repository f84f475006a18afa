// Lists of tensors cut into chunks, so that one parallel loop serves many small tensors and few
// large ones alike.
#pragma once

#include <span>
#include <vector>

#include "core/parallel.h"
#include "core/tensor.h"

namespace weft::kernels {

/// Elements [begin, end) of tensor number `tensor` of a list.
struct TensorChunk {
  int64_t tensor;
  int64_t begin;
  int64_t end;
};

/// Elements of a chunk: the state of an optimizer for so many stays in L2, and a chunk takes long
/// enough (about 20 us) that starting it costs nothing.
inline constexpr int64_t kChunkElements = 32768;

/// Every element of every tensor once, in order; no chunk is empty. The cut depends on the sizes
/// alone.
std::vector<TensorChunk> tensor_chunks(std::span<const Tensor> tensors);

/// The chunks of runs of small tensors taken together: indices into the list of chunks at which
/// tasks of about kChunkElements begin, with the end at last.
std::vector<int64_t> chunk_tasks(std::span<const TensorChunk> chunks);

/// The tasks of a list of tensors.
class ChunkTasks {
 public:
  explicit ChunkTasks(std::span<const Tensor> tensors)
      : chunks_(tensor_chunks(tensors)), tasks_(chunk_tasks(chunks_)) {}
  int64_t count() const { return static_cast<int64_t>(tasks_.size()) - 1; }

  /// Calls f(task, chunk) for every chunk: tasks on all threads, the chunks of one in order.
  template <class F>
  void for_each(F&& f) const {
    parallel_for(count(), 1, [&](int64_t task, int64_t) {
      for (int64_t c = tasks_[task]; c < tasks_[task + 1]; ++c) f(task, chunks_[c]);
    });
  }

 private:
  std::vector<TensorChunk> chunks_;
  std::vector<int64_t> tasks_;
};

/// The tensors with their elements side by side in row-major order: a copy where one is needed.
std::vector<Tensor> contiguous_list(std::span<const Tensor> tensors);

/// That `copies` is empty or as long as `parameters`, and that each that is there is a contiguous
/// bf16 or f16 tensor beside an f32 one of its shape. An internal error otherwise.
void assert_narrow(std::span<const Tensor> parameters, std::span<const Tensor> copies);

/// norm = the root of the sum of `squares`, added in order; norm is a scalar [] of f32 or f64.
void store_norm(std::span<const double> squares, const Tensor& norm);

/// That the lists are as long as `tensors`, and that tensor i of each is contiguous and has tensor
/// i's shape and device. An internal error otherwise.
void assert_matching(std::span<const Tensor> tensors, std::span<const Tensor> others);

}  // namespace weft::kernels
