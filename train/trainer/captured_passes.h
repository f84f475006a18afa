// The forward and backward passes of a training step as one graph (core/graph.h): a launch instead
// of some thousand.
//
// The update is no part of it. Its few kernels are submitted while the graph runs, with the
// learning rate of the step, and callbacks find the gradients before it, as they always do.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autograd/random.h"
#include "core/graph.h"
#include "nn/modes.h"
#include "train/trainer/training_module.h"

namespace weft::train {

class CapturedPasses {
 public:
  /// What a pass has logged: memory of the graph's, written anew by each launch.
  struct Logged {
    size_t pass;
    std::string name;
    Tensor value;
    LogOptions options;
  };

  /// `model`: that of whose parameters the passes leave gradients.
  CapturedPasses(Device device, nn::Module& model)
      : device_(device), model_(model), parameters_(model.parameters()), graph_(device) {}
  /// Takes the gradients along: they are the graph's memory.
  ~CapturedPasses();

  /// Records what `passes`, which returns its batches' losses, submits for batches of these shapes,
  /// and runs nothing. Throws what it throws, and Error where it waits for the device or brings
  /// something there.
  void capture(const std::vector<Batch>& batches,
               const std::function<Tensors(const std::vector<Batch>&)>& passes);
  /// Whether a launch on these batches is what the passes would do: their shapes are those of the
  /// capture, the same modules train, and the parameters and their narrow copies
  /// (autograd/narrow_copies.h) lie where they did, and require gradients or not, as then. Copies
  /// are brought up to date.
  bool fits(const std::vector<Batch>& batches) const;
  /// The passes on other batches, on the device. The parameters' gradients are new ones then.
  void launch(const std::vector<Batch>& batches);

  /// For the passes, while they are captured.
  void log(const std::string& name, const Tensor& value, const LogOptions& options);
  const Tensors& losses() const { return losses_; }
  const std::vector<Logged>& logged() const { return logged_; }
  /// The most bytes that tensors held while the passes were captured, which a launch needs as well.
  size_t peak_bytes() const { return peak_bytes_; }

 private:
  /// A parameter as the capture saw it.
  struct Seen {
    const void* memory;
    bool requires_grad;
    Tensor narrow;
  };

  const Device device_;
  nn::Module& model_;
  const Tensors parameters_;
  DeviceGraph graph_;  // goes after what it writes to
  std::vector<Batch> inputs_;
  std::vector<Seen> seen_;
  std::optional<nn::Modes> modes_;  // as the capture saw them
  Generator generator_;
  Tensors gradients_;  // of each parameter, some undefined
  Tensors losses_;
  std::vector<Logged> logged_;
  size_t peak_bytes_ = 0;
};

}  // namespace weft::train
