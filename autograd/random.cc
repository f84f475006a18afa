#include "autograd/random.h"

#include "core/graph.h"

namespace weft {
namespace {

class MovedGenerator : public GraphState {
 public:
  explicit MovedGenerator(Device device)
      : moved(empty_beside_capture({1}, DType::i64, device)), start_(generator()) {}

  // The capture has drawn nothing.
  void captured() override {
    used_ = generator().offset - start_.offset;
    generator() = start_;
  }
  void advance() override {
    Generator& g = generator();
    WEFT_CHECK(g.seed == start_.seed && g.stream == start_.stream,
               "a graph that draws random numbers was captured with seed {} and stream {} of the "
               "generator, which now has {} and {}: capture the graph again",
               start_.seed, start_.stream, g.seed, g.stream);
    const auto distance = static_cast<int64_t>(g.offset - start_.offset);
    const Device device = moved.device();
    runtime::copy(device.index, moved.raw(), &distance, sizeof(distance),
                  current_stream_handle(device));
    g.offset += used_;
  }

  const Tensor moved;

 private:
  const Generator start_;
  uint64_t used_ = 0;
};

}  // namespace

Tensor moved_since_capture(Device device) {
  DeviceGraph* const graph = DeviceGraph::capturing();
  if (!graph || device.type != DeviceType::cuda) return {};
  GraphState& state =
      graph->state("generator", [device] { return std::make_unique<MovedGenerator>(device); });
  return static_cast<MovedGenerator&>(state).moved;
}

}  // namespace weft
