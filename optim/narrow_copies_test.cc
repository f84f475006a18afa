// The 16-bit copies of weights that optimizers write (autograd/narrow_copies.h).
#include "autograd/narrow_copies.h"

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "kernels/op.h"
#include "optim/adam.h"
#include "optim/sgd.h"

namespace weft {
namespace {

/// Casts of a weight [3, 5] to 16 bits.
struct CountCasts : kernels::LaunchHook {
  CountCasts() { kernels::set_launch_hook(this); }
  ~CountCasts() override { kernels::set_launch_hook(nullptr); }
  void begin(std::string_view op, std::string_view, Device, const std::string& problem) override {
    count += op == "copy" && problem.starts_with("copy(f32 [3, 5] on cpu to ");
  }
  void end() noexcept override {}
  int take() { return std::exchange(count, 0); }
  int count = 0;
};

struct Layer {
  Layer() {
    manual_seed(3);
    weight = ops::randn({3, 5}).set_requires_grad(true);
    bias = Tensor::zeros({3}).set_requires_grad(true);
  }
  void pass(DType dtype = DType::bf16) const {
    const Autocast mode(dtype);
    backward(ops::sum(ops::square(ops::linear(Tensor::full({2, 5}, 0.5), weight, bias))));
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
    ops::mul_(layer.weight, Tensor::scalar(2));
  }
  CHECK(is_current(layer));
  CHECK(casts.take() == 2);  // the copy's, and the one that it is held against
  step();
  CHECK(casts.take() == 0);
  // Through a pointer, and a word of it.
  layer.weight.data<float>()[4] = 100;
  layer.weight.bump_version();
  step();
  CHECK(casts.take() == 1);
  CHECK(is_current(layer));
  CHECK(narrow_copy(layer.weight).is_same(copy));
  // Other memory, and another copy.
  layer.weight.set_data(Tensor::full({3, 5}, 0.25));
  step();
  CHECK(is_current(layer));
  CHECK_FALSE(narrow_copy(layer.weight).is_same(copy));
}

TEST_CASE("a step that is left out leaves the copy as it is") {
  Layer layer;
  optim::AdamW optimizer(Tensors{layer.weight}, {.lr = 0.1});
  for (double skip : {1.0, 0.0, 1.0}) {
    optimizer.zero_grad();
    layer.pass();
    const std::vector<double> before = layer.weight.to_vector();
    kernels::StepGate gate;
    gate.skip = Tensor::scalar(skip);
    optimizer.step(1, gate);
    CHECK((layer.weight.to_vector() == before) == (skip != 0));
    CHECK(is_current(layer));
    if (skip != 0) optimizer.retract();
  }
}

TEST_CASE("a backward pass behind the step does not take the new weight for the old one") {
  const bool is_convolution = GENERATE(false, true);
  Tensor weight = ops::randn(is_convolution ? Shape{3, 5, 1, 1} : Shape{3, 5});
  weight.set_requires_grad(true);
  Tensor x = ops::randn(is_convolution ? Shape{2, 5, 2, 2} : Shape{2, 5}).set_requires_grad(true);
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
  Layer layer;
  std::optional<optim::AdamW> optimizer(std::in_place, Tensors{layer.weight, layer.bias});
  // An evaluation asks for nothing.
  {
    const NoGrad guard;
    const Autocast mode(DType::bf16);
    ops::linear(Tensor::full({2, 5}, 0.5), layer.weight);
  }
  backward(ops::sum(ops::linear(Tensor::full({2, 5}, 0.5), layer.weight, layer.bias)));
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
  const Tensor whole = ops::randn({6, 5});
  Tensor part = Tensor::view_of(whole.storage(), {3, 5}, {5, 1}, 0, DType::f32);
  part.set_requires_grad(true);
  optim::AdamW third(Tensors{part});
  const Autocast mode(DType::bf16);
  backward(ops::sum(ops::linear(Tensor::full({2, 5}, 0.5), part)));
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
