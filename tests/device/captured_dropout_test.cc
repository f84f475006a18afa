// Dropout in a captured step: each launch of the graph draws the masks that the step would have
// drawn if it were run, forward and backward.
#include <catch2/catch.hpp>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/graph.h"
#include "core/runtime.h"
#include "core/transfer.h"
#include "tests/skip.h"

using namespace weft;

namespace {

const Device kCuda{DeviceType::cuda, 0};
constexpr int kSteps = 3;

using Values = std::vector<double>;

/// What `step` writes to its tensors in each of kSteps steps, and where the generator then stands.
/// As a graph, the generator has moved on between the capture and the launches.
template <class Step>
std::pair<std::vector<Values>, uint64_t> run(bool captured, Step step) {
  manual_seed(3);
  std::vector<Values> values;
  Tensors results;
  DeviceGraph graph(kCuda);
  if (captured) graph.capture([&] { results = step(); });
  CHECK(generator().offset == 0);
  generator().take(40);
  for (int i = 0; i < kSteps; ++i) {
    if (captured) {
      graph.launch();
    } else {
      results = step();
    }
    for (const Tensor& result : results) values.push_back(result.to_vector());
  }
  return {values, generator().offset};
}

template <class Step>
void check_masks(Step step) {
  const auto [expected, end] = run(false, step);
  CHECK(run(true, step) == std::pair(expected, end));
  const size_t results = expected.size() / kSteps;
  for (size_t r = 0; r < results; ++r) CHECK(expected[r] != expected[r + results]);
}

Tensor on_device(const Shape& shape) {
  Tensor x = to_device(ops::randn(shape), kCuda);
  x.set_requires_grad(true);
  return x;
}

}  // namespace

TEST_CASE("each launch of a captured dropout draws another mask, that of an eager step") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  Tensor x = on_device({5, 7});
  check_masks([&]() -> Tensors {
    x.set_grad({});
    const Tensor y = ops::dropout(ops::dropout(x, 0.5, true), 0.25, true);
    backward(ops::sum(y));
    return {detach(y), x.grad()};
  });
}

TEST_CASE("so does attention") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  for (DType dtype : {DType::f32, DType::bf16}) {
    Tensor x = to_device(ops::cast(ops::randn({1, 9, 48}), dtype), kCuda);
    x.set_requires_grad(true);
    check_masks([&]() -> Tensors {
      x.set_grad({});
      const Tensor y = ops::self_attention(x, 2, {.dropout = 0.5});
      backward(ops::sum(y));
      return {detach(y), x.grad()};
    });
  }
}

TEST_CASE("a graph that draws is launched with the seed of its capture") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const Tensor x = to_device(ops::randn({8}), kCuda);
  DeviceGraph graph(kCuda);
  manual_seed(1);
  graph.capture([&] { ops::dropout(x, 0.5, true); });
  graph.launch();
  manual_seed(2);
  CHECK_THROWS_WITH(graph.launch(), Catch::Contains("captured with seed 1 and stream 0") &&
                                        Catch::Contains("now has 2 and 0"));
}
