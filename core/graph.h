// A stretch of a device's work recorded once and then launched with one call.
//
//   DeviceGraph graph(device);
//   graph.capture([&] { loss = train_step(images, labels); });
//   for (...) { copy_same_layout(next_images, images); graph.launch(); }
//
// What the function submits is recorded with its addresses, so inputs are put where the capture
// read them. The memory that it allocates belongs to the graph. To wait for the device inside a
// capture (item(), to_vector(), a copy to the CPU) is an error. On the CPU capture() runs the
// function and launch() runs it again.
//
// Dropout draws another mask in every launch, the one that the step would have drawn if it were run
// instead: what depends on the number of a launch follows the graph as a GraphState.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/stream.h"
#include "core/tensor.h"

namespace weft {

/// What a graph's kernels read in device memory and the host moves on from launch to launch.
class GraphState {
 public:
  virtual ~GraphState() = default;
  /// The capture has ended; its work has not run.
  virtual void captured() = 0;
  /// Submits the values of the next launch to the current stream.
  virtual void advance() = 0;
};

/// Memory that is filled before each launch of a graph and read by it. Not out of the capture's own
/// pool, whose blocks may have served earlier work of the graph, which would overwrite it in every
/// launch: a stream of its own gives it out, which lives as long as the process.
Tensor empty_beside_capture(const Shape& shape, DType dtype, Device device);

class DeviceGraph {
 public:
  explicit DeviceGraph(Device device);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  /// Records what `work` submits; on a CUDA device nothing of it runs yet. Throws what it throws.
  void capture(const std::function<void()>& work);
  /// Submits the recorded work to the current stream.
  void launch();

  /// The graph that this thread captures, or null: not on the CPU.
  static DeviceGraph* capturing();
  /// Of a capture that goes on: the state called `name`, made by `make` when it is first asked for.
  GraphState& state(const std::string& name,
                    const std::function<std::unique_ptr<GraphState>()>& make);

 private:
  Device device_;
  Stream stream_;
  runtime::GraphHandle graph_ = nullptr;
  std::map<std::string, std::unique_ptr<GraphState>> states_;
  std::function<void()> work_;  // on the CPU
};

}  // namespace weft
