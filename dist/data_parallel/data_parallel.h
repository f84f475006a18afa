// Data parallelism inside one process: a replica of the model per device, a thread per replica.
//
//   DataParallel parallel(model, [] { return make_model(); }, 4);
//   backward(ops::cross_entropy(parallel(images), labels));
//
// The batch is cut along its first dimension; gradients of the replicas are added in the tree of
// reduce_tree.h and go to the parameters of `model`, which alone is trained. Replicas on the
// model's device, which is the first's, share the memory of its parameters; others, on the devices
// behind it or those that are named, get copies before each forward. Of the replicas' changes to
// buffers the first's are kept, as in PyTorch. Replicas run in the precision of the thread that
// calls; in fp8 each has scales of its own, and delayed ones follow the largest magnitude that any
// of them has met.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "autograd/fp8.h"
#include "autograd/random.h"
#include "core/memory_account.h"
#include "nn/module.h"

namespace weft::dist {

class DataParallel {
 public:
  /// `make` builds modules of the same architecture as `module`. `numbers`: of the GPUs that the
  /// replicas are on, the module's first; empty: the module's and those behind it
  /// (dist/comm/device/device_of_rank.h). Throws Error when either does not fit.
  DataParallel(nn::Module& module, const std::function<std::shared_ptr<nn::Module>()>& make,
               int replicas, const std::vector<int>& numbers = {});

  /// x [B, ...]; the parts are as equal as B allows, and replicas without a part rest.
  Tensor operator()(const Tensor& x);
  /// The same on parts that are given, at most one per replica: replica r's result of parts[r],
  /// with the random numbers from streams[r] on.
  Tensors forward(const Tensors& parts, const std::vector<Generator>& streams);
  int replicas() const { return static_cast<int>(replicas_.size()); }

 private:
  struct Replica {
    std::shared_ptr<nn::Module> module;
    Device device;
    std::optional<Fp8Scaling> fp8;  // once it was run in fp8
    MemoryAccount account;          // of its device; the first's is the caller's
  };

  /// What a replica holds between forward and backward.
  struct Part {
    Tensor x, y;
    // In the order of the module's. Its forward() may give them other names, and so may the program
    // until the backward pass.
    NamedTensors parameters;
    std::optional<Fp8Scaling> fp8;  // under which its forward ran
    uint64_t offset = 0;            // of its random stream
  };

  using Replicas = std::vector<std::shared_ptr<Replica>>;

  /// Brings a replica's parameters, buffers and scales up to date with the module's, whose
  /// parameters are `ours`, and returns its parameters in their order.
  NamedTensors follow(Replica& replica, const NamedTensors& ours, bool is_first) const;
  /// What these parts have met in fp8 becomes known to the module's scales.
  static void gather_amax(std::optional<Fp8Scaling> scaling, const NamedTensors& ours,
                          const std::vector<Part>& parts);

  nn::Module& module_;
  Replicas replicas_;
};

}  // namespace weft::dist
