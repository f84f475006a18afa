#include "core/graph.h"

#include "core/allocator.h"
#include "core/scoped_value.h"

namespace weft {
namespace {

thread_local DeviceGraph* the_capturing_graph = nullptr;

}  // namespace

Tensor empty_beside_capture(const Shape& shape, DType dtype, Device device) {
  thread_local auto& streams = *new std::map<int, Stream>;
  const StreamGuard guard(streams.try_emplace(device.index, device).first->second);
  return Tensor::empty(shape, dtype, device);
}

DeviceGraph* DeviceGraph::capturing() { return the_capturing_graph; }

GraphState& DeviceGraph::state(const std::string& name,
                               const std::function<std::unique_ptr<GraphState>()>& make) {
  WEFT_ASSERT(the_capturing_graph == this);
  std::unique_ptr<GraphState>& state = states_[name];
  if (!state) state = make();
  return *state;
}

DeviceGraph::DeviceGraph(Device device) : device_(device), stream_(device) {
  if (stream_.handle()) allocator(device_).hold(stream_.handle());
}

DeviceGraph::~DeviceGraph() {
  if (!stream_.handle()) return;
  try {
    stream_.synchronize();
    if (graph_) runtime::destroy_graph(device_.index, graph_);
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
    const ScopedValue captures(the_capturing_graph, this);
    work();
  } catch (...) {
    // The stream leaves its capture; what was recorded is dropped.
    try {
      runtime::destroy_graph(device_.index, runtime::end_capture(device_.index, stream_.handle()));
    } catch (const Error&) {  // an invalidated capture has no graph
    }
    states_.clear();
    throw;
  }
  graph_ = runtime::end_capture(device_.index, stream_.handle());
  for (const auto& [name, state] : states_) state->captured();
}

void DeviceGraph::launch() {
  if (work_) return work_();
  WEFT_CHECK(graph_, "a DeviceGraph is launched after its capture");
  for (const auto& [name, state] : states_) state->advance();
  const Stream current = current_stream(device_);
  Event before(device_), after(device_);
  before.record(current);
  stream_.wait(before);
  runtime::launch_graph(device_.index, graph_, stream_.handle());
  after.record(stream_);
  current.wait(after);
}

}  // namespace weft
