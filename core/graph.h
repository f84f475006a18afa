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
#pragma once

#include <functional>

#include "core/stream.h"

namespace weft {

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

 private:
  Device device_;
  Stream stream_;
  runtime::GraphHandle graph_ = nullptr;
  std::function<void()> work_;  // on the CPU
};

}  // namespace weft
