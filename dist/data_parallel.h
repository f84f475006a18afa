// Data parallelism inside one process: a replica of the model per device, a thread per replica.
//
//   DataParallel parallel(model, [] { return make_model(); }, 4);
//   backward(ops::cross_entropy(parallel(images), labels));
//
// The batch is cut along its first dimension, each part runs through its replica on a thread of its
// own, forward and backward, and the results are put together again. Gradients of the replicas are
// added, in the tree of reduce_tree.h, and go to the parameters of `model`, which alone is trained.
// Replicas share the memory of the parameters on the CPU. Buffers follow the model's before each
// forward; what the replicas do to theirs is kept of the first replica, as in PyTorch. Replicas run
// in the precision of the thread that calls, backward too.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "autograd/random.h"
#include "nn/module.h"

namespace weft::dist {

class DataParallel {
 public:
  /// `make` builds modules of the same architecture as `module`. Throws Error when it does not.
  DataParallel(nn::Module& module, const std::function<std::unique_ptr<nn::Module>()>& make,
               int replicas);

  /// x [B, ...]; the parts are as equal as B allows, and replicas without a part rest.
  Tensor operator()(const Tensor& x);
  /// The same on parts that are given, at most one per replica: replica r's result of parts[r],
  /// with the random numbers from streams[r] on.
  Tensors forward(const Tensors& parts, const std::vector<Generator>& streams);
  int replicas() const { return static_cast<int>(replicas_.size()); }

 private:
  nn::Module& module_;
  std::vector<std::shared_ptr<nn::Module>> replicas_;
};

}  // namespace weft::dist
