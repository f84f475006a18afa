// Pipelines: a model cut along its depth, each stage on a rank of its own.
//
//   Pipeline pipeline(model, segments, {.stages = world, .micro_batches = 8});
//   pipeline.run({.count = 8, .at = ...});        // or, in a plain loop,
//   backward(ops::cross_entropy(pipeline(images), labels));
//
// A stage is a run of neighbouring segments (stages.h). The other stages' parameters keep their
// names and shapes on every rank but no memory: touching one is an error that names it. Activations
// travel forward, their gradients back, each direction between two neighbours through a group of
// its own, so that neither waits for the other. All stages run their backwards in order of the
// micro-batches, hence gradients are the same sums under both schedules:
//
//   kGpipe   all forwards, then all backwards; a stage keeps K micro-batches' activations.
//            Huang et al.: "GPipe", arXiv:1811.06965
//   k1F1B    a backward as soon as there is one; stage s of S keeps at most S - s. Narayanan et
//            al.: "PipeDream-Flush", arXiv:2006.09503
//
// In both a stage waits (S - 1) / (K + S - 1) of the time. The generator travels with the
// activations, so a micro-batch's dropout is that of one rank: micro-batch i draws from the stream
// that is i 2^48 behind the caller's, unless MicroBatches::at() sets the generator, and behind them
// all stages go on from one place. With a data group, whose ranks hold the same stage, gradients
// are summed over it as ddp does.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/comm/communicator.h"
#include "dist/model_parallel/micro_batch.h"
#include "nn/module.h"
#include "nn/structure.h"

namespace weft::dist {

struct PipelineOptions {
  CommunicatorPtr stages;  // rank s holds stage s
  CommunicatorPtr data;    // the ranks that hold the same stage for other samples; may be null
  Schedule schedule = Schedule::kUsual;  // of run()
  int64_t micro_batches = 1;             // of operator()
};

class Pipeline {
 public:
  /// Copies the first rank's state to all, then keeps this stage's. Throws Error when there are
  /// fewer segments than stages, and for a tensor that belongs to no segment or to several.
  Pipeline(nn::Module& module, nn::Segments segments, const PipelineOptions& options);

  int stage() const;
  /// This stage's segments.
  std::vector<std::string> segment_names() const;
  /// Of a parameter or buffer of the model.
  bool owns(const std::string& name) const;
  /// Micro-batches whose activations this stage has held at a time.
  int64_t peak_in_flight() const;

  /// Forward and backward of a step's micro-batches; losses are asked of the last stage alone. What
  /// a micro-batch that throws on every rank has left between the stages does not reach the next. A
  /// stage that fails in its backward ends the others': they throw at once, with its reason.
  void run(const MicroBatches& batches);

  /// The model's output on x, cut into micro-batches, on every stage. Every stage computes the same
  /// loss of it and calls backward(), which is GPipe's second half: backward() throws Error where
  /// the schedule is k1F1B. Where x requires a gradient, on every stage, each gets it. grad() gives
  /// every stage the gradients of parameters that all ask for, whichever stage has them.
  Tensor operator()(const Tensor& x);
  /// Copies the buffers of the data group's first rank to all of it.
  void broadcast_buffers();
  /// While the result lives, gradients are not summed over the data group.
  std::shared_ptr<void> no_sync();

  /// Tensors that each stage has of its own, all together on the first stage, on the CPU, in order
  /// of the stages; elsewhere nothing.
  NamedTensors gather(const NamedTensors& mine);

 private:
  class Engine;
  std::shared_ptr<Engine> engine_;
};

}  // namespace weft::dist
