// Tensors move between the CPU, devices and device indices as any op: their gradients come back.
#include <catch2/catch.hpp>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/device.h"
#include "core/runtime.h"
#include "nn/layers.h"
#include "tests/skip.h"

namespace weft {
namespace {

const Device kFirst{DeviceType::cuda, 0}, kSecond{DeviceType::cuda, 1};

/// A model cut in two by hand, each half on a device of its own.
struct Halves {
  Halves(Device first, Device second) : first(first), second(second) {
    manual_seed(3);
    lower = std::make_unique<nn::Linear>(6, 5);
    upper = std::make_unique<nn::Linear>(5, 4);
    images = ops::randn({3, 6});
    images.set_requires_grad(true);
    lower->to(first);
    upper->to(second);
  }
  Tensor loss() {
    const Tensor hidden = ops::relu((*lower)(ops::to(images, first)));
    const Tensor out = (*upper)(ops::to(hidden, second));
    CHECK(hidden.device() == first);
    CHECK(out.device() == second);
    return ops::to(ops::sum(ops::mul(out, out)), Device{});
  }
  Device first, second;
  std::unique_ptr<nn::Linear> lower, upper;
  Tensor images;
};

std::vector<std::vector<double>> gradients(Halves&& halves) {
  backward(halves.loss());
  CHECK(halves.images.grad().device() == Device{});
  CHECK(halves.lower->weight.grad().device() == halves.first);
  CHECK(halves.upper->weight.grad().device() == halves.second);
  std::vector<std::vector<double>> all = {halves.images.grad().to_vector()};
  for (nn::Module* half : {static_cast<nn::Module*>(halves.lower.get()),
                           static_cast<nn::Module*>(halves.upper.get())}) {
    for (const Tensor& p : half->parameters()) all.push_back(p.grad().to_vector());
  }
  return all;
}

}  // namespace

TEST_CASE("a model cut over two devices has the gradients of the whole, bit for bit") {
  if (runtime::device_count() < 2) WEFT_SKIP("fewer than two CUDA devices");
  CHECK(gradients({kFirst, kSecond}) == gradients({kFirst, kFirst}));
}

TEST_CASE("ops compute on their tensors' device and leave the thread on its own") {
  if (runtime::device_count() < 2) WEFT_SKIP("fewer than two CUDA devices");
  for (const Device device : {kSecond, kFirst}) {
    const runtime::DeviceGuard guard(1 - device.index);
    const Tensor x = ops::full({8, 4}, 2, DType::f32, device);
    CHECK(ops::to(ops::matmul(x, ops::transpose(x, 0, 1)), Device{}).to_vector() ==
          std::vector<double>(64, 16));
    CHECK(runtime::current_device() == 1 - device.index);
  }
}

TEST_CASE("gradients cross from a device to the CPU and back") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  Tensor x = ops::randn({2, 3});
  x.set_requires_grad(true);
  const Tensor there = ops::to(x * 2, kFirst);
  const Tensor back = ops::to(there * 3, Device{});
  backward(ops::sum(back));
  CHECK(x.grad().device() == Device{});
  CHECK(x.grad().to_vector() == std::vector<double>(6, 6));
  // Of gradients too.
  const Tensor y = ops::to(x, kFirst);
  const Tensor dx =
      grad({ops::sum(ops::mul(ops::mul(y, y), y))}, {x}, {}, {.create_graph = true})[0];
  x.set_grad({});
  backward(ops::sum(dx));
  const std::vector<double> values = x.to_vector();
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK(x.grad().to_vector()[i] == Approx(6 * values[i]));
  }
}

TEST_CASE("an op over two devices names both") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const Tensor here = ops::ones({2}), there = ops::ones({2}, DType::f32, kFirst);
  CHECK_THROWS_WITH(ops::add(here, there),
                    Catch::Matchers::Contains("cpu") && Catch::Matchers::Contains("cuda:0"));
}

}  // namespace weft
