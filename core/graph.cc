#include "core/graph.h"

#include "core/allocator.h"

namespace weft {

DeviceGraph::DeviceGraph(Device device) : device_(device), stream_(device) {
  if (stream_.handle()) allocator(device_).hold(stream_.handle());
}

DeviceGraph::~DeviceGraph() {
  if (!stream_.handle()) return;
  try {
    stream_.synchronize();
    if (graph_) runtime::destroy_graph(device_.index, graph_);
    allocator(device_).let_go(stream_.handle());
  } catch (const std::exception&) {
    // A device that has failed: the next call that may throw says why.
  }
}

void DeviceGraph::capture(const std::function<void()>& work) {
  WEFT_CHECK(!graph_ && !work_, "a DeviceGraph is captured once");
  if (!stream_.handle()) {
    work();
    work_ = work;
    return;
  }
  synchronize(device_);
  const StreamGuard guard(stream_);
  runtime::begin_capture(device_.index, stream_.handle());
  try {
    work();
  } catch (...) {
    // The stream leaves its capture; what was recorded is dropped.
    try {
      runtime::destroy_graph(device_.index, runtime::end_capture(device_.index, stream_.handle()));
    } catch (const Error&) {  // an invalidated capture has no graph
    }
    throw;
  }
  graph_ = runtime::end_capture(device_.index, stream_.handle());
}

void DeviceGraph::launch() {
  if (work_) return work_();
  WEFT_CHECK(graph_, "a DeviceGraph is launched after its capture");
  const Stream current = current_stream(device_);
  Event before(device_), after(device_);
  before.record(current);
  stream_.wait(before);
  runtime::launch_graph(device_.index, graph_, stream_.handle());
  after.record(stream_);
  current.wait(after);
}

}  // namespace weft
