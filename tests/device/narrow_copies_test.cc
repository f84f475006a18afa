// The 16-bit copies of weights that optimizers write on a GPU (autograd/narrow_copies.h).
#include "autograd/narrow_copies.h"

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/runtime.h"
#include "core/transfer.h"
#include "kernels/op.h"
#include "optim/adam.h"
#include "optim/sgd.h"
#include "tests/skip.h"

namespace weft {
namespace {

const Device kCuda{DeviceType::cuda, 0};

/// Inputs of the layer.
Tensor halves() { return ops::full({2, 5}, 0.5, DType::f32, kCuda); }

/// Casts of a weight [3, 5] to 16 bits.
struct CountCasts : kernels::LaunchHook {
  CountCasts() { kernels::set_launch_hook(this); }
  ~CountCasts() override { kernels::set_launch_hook(nullptr); }
  void begin(std::string_view op, std::string_view, Device, const std::string& problem) override {
    count += op == "copy" && problem.starts_with("copy(f32 [3, 5] on cuda:0 to ");
  }
  void end() noexcept override {}
  int take() { return std::exchange(count, 0); }
  int count = 0;
};

struct Layer {
  Layer() {
    manual_seed(3);
    weight = to_device(ops::randn({3, 5}), kCuda).set_requires_grad(true);
    bias = Tensor::zeros({3}, DType::f32, kCuda).set_requires_grad(true);
  }
  void pass(DType dtype = DType::bf16) const {
    const Autocast mode(dtype);
    backward(ops::sum(ops::square(ops::linear(halves(), weight, bias))));
  }
  Tensor weight, bias;
};

Tensor cast_of(const Tensor& weight, DType dtype) {
  const NoGrad guard;
  return ops::cast(weight, dtype);
}

bool is_current(const Layer& layer, DType dtype = DType::bf16) {
  const Tensor copy = narrow_copy(layer.weight);
  return copy.defined() && copy.to_vector() == cast_of(layer.weight, dtype).to_vector();
}

}  // namespace

TEST_CASE("what the optimizer wrote is what products read: no weight is cast any more") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const DType dtype = GENERATE(DType::bf16, DType::f16);
  const bool is_adam = GENERATE(true, false);
  // The same steps, where every pass casts its weight.
  const auto train = [&](bool copies) {
    Layer layer;
    CountCasts casts;
    std::unique_ptr<optim::Optimizer> optimizer;
    const Tensors parameters = {layer.weight, layer.bias};
    if (is_adam) {
      optimizer = std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{.lr = 0.1});
    } else {
      optimizer =
          std::make_unique<optim::SGD>(parameters, optim::SgdOptions{.lr = 0.1, .momentum = 0.9});
    }
    if (!copies) forbid_narrow_copies(layer.weight);
    std::vector<double> all;
    const void* memory = nullptr;
    for (int step = 0; step < 4; ++step) {
      optimizer->zero_grad();
      layer.pass(dtype);
      CHECK(casts.take() == (copies && step > 0 ? 0 : 1));
      optimizer->step();
      // The first step makes the copy.
      CHECK(casts.take() == (copies && step == 0 ? 1 : 0));
      CHECK(is_current(layer, dtype) == copies);
      casts.take();
      CHECK_FALSE(narrow_copy(layer.bias).defined());
      if (copies && step > 0) CHECK(narrow_copy(layer.weight).raw() == memory);
      memory = copies ? narrow_copy(layer.weight).raw() : nullptr;
      for (double x : layer.weight.to_vector()) all.push_back(x);
    }
    return all;
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("a weight that is changed by others than its optimizer is cast anew, once") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  Layer layer;
  CountCasts casts;
  optim::AdamW optimizer(Tensors{layer.weight}, {.lr = 0.1});
  const auto step = [&] {
    optimizer.zero_grad();
    layer.pass();
    optimizer.step();
  };
  step();
  const Tensor copy = narrow_copy(layer.weight);
  casts.take();
  {
    const NoGrad guard;
    ops::mul_(layer.weight, to_device(Tensor::scalar(2), kCuda));
  }
  CHECK(is_current(layer));
  CHECK(casts.take() == 2);  // the copy's, and the one that it is held against
  step();
  CHECK(casts.take() == 0);
  // Through a pointer, and a word of it.
  copy_same_layout(Tensor::full({3, 5}, 100), layer.weight);
  layer.weight.bump_version();
  step();
  CHECK(casts.take() == 1);
  CHECK(is_current(layer));
  CHECK(narrow_copy(layer.weight).is_same(copy));
  // Other memory, and another copy.
  layer.weight.set_data(ops::full({3, 5}, 0.25, DType::f32, kCuda));
  step();
  CHECK(is_current(layer));
  CHECK_FALSE(narrow_copy(layer.weight).is_same(copy));
}

TEST_CASE("a step that is left out leaves the copy as it is") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  Layer layer;
  optim::AdamW optimizer(Tensors{layer.weight}, {.lr = 0.1});
  for (double skip : {1.0, 0.0, 1.0}) {
    optimizer.zero_grad();
    layer.pass();
    const std::vector<double> before = layer.weight.to_vector();
    kernels::StepGate gate;
    gate.skip = to_device(Tensor::scalar(skip), kCuda);
    optimizer.step(1, gate);
    CHECK((layer.weight.to_vector() == before) == (skip != 0));
    CHECK(is_current(layer));
    if (skip != 0) optimizer.retract();
  }
}

TEST_CASE("a backward pass behind the step does not take the new weight for the old one") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  const bool is_convolution = GENERATE(false, true);
  const auto leaf = [](const Shape& shape) {
    return to_device(ops::randn(shape), kCuda).set_requires_grad(true);
  };
  const Tensor weight = leaf(is_convolution ? Shape{3, 5, 1, 1} : Shape{3, 5});
  const Tensor x = leaf(is_convolution ? Shape{2, 5, 2, 2} : Shape{2, 5});
  optim::AdamW optimizer(Tensors{weight}, {.lr = 0.1});
  const auto loss = [&] {
    const Autocast mode(DType::bf16);
    return ops::sum(is_convolution ? ops::conv2d(x, weight) : ops::linear(x, weight));
  };
  backward(loss());
  optimizer.step();
  const Tensor late = loss();
  optimizer.step();
  CHECK_THROWS_WITH(backward(late), Catch::Contains("changed in place"));
}

TEST_CASE("copies are of weights that products ask for, and go with the optimizer") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  Layer layer;
  std::optional<optim::AdamW> optimizer(std::in_place, Tensors{layer.weight, layer.bias});
  // An evaluation asks for nothing.
  {
    const NoGrad guard;
    const Autocast mode(DType::bf16);
    ops::linear(halves(), layer.weight);
  }
  backward(ops::sum(ops::linear(halves(), layer.weight, layer.bias)));
  optimizer->step();
  CHECK_FALSE(narrow_copy(layer.weight).defined());
  // Then a pass does, and another one in the other format.
  layer.pass(DType::bf16);
  optimizer->step();
  CHECK(is_current(layer, DType::bf16));
  layer.pass(DType::f16);
  optimizer->step();
  CHECK(is_current(layer, DType::f16));
  // In somebody else's hands.
  forbid_narrow_copies(detach(layer.weight));
  CHECK_FALSE(narrow_copy(layer.weight).defined());
  Layer other;
  optim::AdamW second(Tensors{other.weight});
  other.pass();
  second.step();
  CHECK(is_current(other));
  optimizer.reset();
  CHECK(is_current(other));
  // Parts of one storage have none: each would count the changes of the others.
  const Tensor whole = to_device(ops::randn({6, 5}), kCuda);
  Tensor part = Tensor::view_of(whole.storage(), {3, 5}, {5, 1}, 0, DType::f32);
  part.set_requires_grad(true);
  optim::AdamW third(Tensors{part});
  const Autocast mode(DType::bf16);
  backward(ops::sum(ops::linear(halves(), part)));
  third.step();
  CHECK_FALSE(narrow_copy(part).defined());
  // Nor have those of optimizers that do not write them.
  Layer last;
  struct Plain : optim::SGD {
    using SGD::SGD;
    bool is_fused() const override { return false; }
  } plain(Tensors{last.weight});
  last.pass();
  plain.step();
  CHECK_FALSE(narrow_copy(last.weight).defined());
}

}  // namespace weft
