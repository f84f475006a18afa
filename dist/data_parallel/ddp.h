// Distributed data parallelism: every rank holds the whole model and a part of the batch.
//
//   DistributedDataParallel ddp(model, world);
//   Tensor loss = ops::cross_entropy(ddp(images), labels);
//   backward(loss);          // gradients are averaged over ranks while it runs
//   optimizer.step();
//
// Gradients travel in buckets, each reduced as soon as it is complete, while backward goes on:
// parameters in reverse order of registration at first, from the second iteration on in the order
// in which the gradients arrived in the first. Buckets run in one order on every rank; their sizes
// change no bit (reduce_tree.h). .grad() holds the reduced gradient once the outermost backward()
// has returned. Parameters may be frozen and trained again, on all ranks alike: nothing waits for
// those that are frozen. A pass that fails on every rank and is caught leaves the gradients that
// there were before it, summed or not. Li et al.: "PyTorch Distributed", VLDB 2020.
//
// Memory, in bytes, for P parameters of 4: gradients 4P, buckets 4P; with gradient_as_bucket_view
// 4P together, and 4P more in a pass that adds to gradients in the buckets: it restores them if it
// fails.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/comm/communicator.h"
#include "nn/module.h"

namespace weft::dist {

/// A bucket on its way: `flat` is to become the mean (or the sum) over ranks.
struct GradientBucket {
  int index = 0;
  Tensor flat;
  ReduceOp op = ReduceOp::kMean;
};
/// Begins the reduction of a bucket and returns what completes it, which is called once, before
/// the gradients are handed out.
using CommunicationHook =
    std::function<std::function<void()>(Communicator& group, const GradientBucket& bucket)>;

/// Sends f32 gradients as `narrow` (f16 or bf16): half of the bytes. Each rank's is rounded to
/// narrow, the mean is formed in f32 and rounded once more. Other 16 bits than narrow are an Error:
/// neither format holds the other's numbers.
CommunicationHook compress_gradients(DType narrow);

struct DdpOptions {
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;  // small, so that communication begins early
  /// kMean: PyTorch's rule. kSum: the loss was weighted with the rank's share of the samples, so
  /// that the sum is the true mean however uneven the batches are.
  /// A pass on top of gradients that are summed already adds its own sum to them; under kSum it is
  /// an Error to have added to these under no_sync().
  ReduceOp average = ReduceOp::kMean;
  /// Some parameters get no gradient in some iterations: costs one small collective per step.
  /// Otherwise one without gradient that is not frozen is an error, and so is one of which, from
  /// the second iteration on, more gradients come on some ranks alone than in the first.
  bool find_unused_parameters = false;
  /// The same parameters are used, the same number of times, in every iteration: those without a
  /// gradient in the first are never waited for, and one that has a gradient later is an error.
  bool static_graph = false;
  bool gradient_as_bucket_view = false;
  /// Copies rank 0's buffers to all before each forward in training.
  bool broadcast_buffers = true;
  CommunicationHook hook;
};

class DistributedDataParallel {
 public:
  /// Copies rank 0's parameters and buffers to all ranks. Throws Error on every rank, naming the
  /// first rank and tensor that differ from rank 0's, when names, shapes or dtypes do.
  DistributedDataParallel(nn::Module& module, CommunicatorPtr group,
                          const DdpOptions& options = {});

  Tensor operator()(const Tensor& x);
  /// The same for a module that is called in another way, or has several outputs.
  Tensor forward(const std::function<Tensor()>& function);
  Tensors forward(const std::function<Tensors()>& function);

  /// Copies rank 0's buffers to all.
  void broadcast_buffers();

  /// While the result lives, gradients stay on their rank and add up. It covers forward and
  /// backward.
  std::shared_ptr<void> no_sync();

  /// Reduces what was gathered under no_sync, without a backward; zeros for what was not: for a
  /// rank that has no sample this time.
  void synchronize();

  /// Ranks with different numbers of batches: between its construction and finish(), a rank that
  /// has no batches left takes part in the collectives of the others with zeros. In the end all
  /// have the parameters of a rank that worked to the last.
  ///
  ///   DistributedDataParallel::Join join(ddp);
  ///   for (const Batch& batch : my_batches) { ...; backward(loss); optimizer.step(); }
  ///   join.finish();
  class Join {
   public:
    explicit Join(DistributedDataParallel& ddp);
    ~Join();
    void finish();

   private:
    DistributedDataParallel& ddp_;
  };

  /// Parameter names by bucket, in the order of reduction.
  std::vector<std::vector<std::string>> buckets() const;
  int64_t bucket_bytes() const;

 private:
  class Reducer;
  std::shared_ptr<Reducer> reducer_;
};

/// Throws Error on every rank of the group, naming the first rank and tensor that differ from rank
/// 0's, unless all list the same names, shapes and dtypes.
void verify_same_tensors(Communicator& group, const NamedTensors& tensors, std::string_view what);

}  // namespace weft::dist
