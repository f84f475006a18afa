// Cross-entropy on a CUDA device, real or emulated: its gradient comes with the loss.
#include <catch2/catch.hpp>
#include <cmath>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/runtime.h"
#include "kernels/op.h"
#include "tests/skip.h"

namespace weft {
namespace {

const Device kCuda{DeviceType::cuda, 0};

/// Counts the kernels of cross_entropy: those that take the loss, and all.
class Counter : public kernels::LaunchHook {
 public:
  Counter() { kernels::set_launch_hook(this); }
  ~Counter() override { kernels::set_launch_hook(nullptr); }
  void begin(std::string_view op, std::string_view, Device, const std::string& problem) override {
    if (op != "cross_entropy") return;
    ++count;
    both += problem.find("forward=true, backward=true") != std::string::npos;
  }
  void end() noexcept override {}
  int count = 0, both = 0;
};

struct Case {
  explicit Case(DType dtype = DType::f32, bool hard = true) {
    manual_seed(11);
    logits = ops::to(ops::cast(ops::randn({7, 37}), dtype), kCuda);
    logits.set_requires_grad(true);
    labels = hard ? ops::to(Tensor::from(std::vector<int64_t>{0, 36, 5, -100, 9, 9, 1}, {7}), kCuda)
                  : ops::to(ops::softmax(ops::randn({7, 37}), 1), kCuda);
  }
  Tensor loss() const { return ops::cross_entropy(logits, labels, {.label_smoothing = 0.1}); }
  std::vector<double> gradient(const Tensor& loss, bool retain = false) {
    logits.set_grad({});
    backward(loss, {}, {.retain_graph = retain});
    return logits.grad().to_vector();
  }
  Tensor logits, labels;
};

TEST_CASE("loss and gradient come from one kernel, with the bits of two") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  for (bool hard : {true, false}) {
    INFO("hard labels " << hard);
    Case c(DType::f32, hard);
    const Tensor loss = c.loss();
    std::vector<double> together, apart;
    {
      const Counter counter;
      CHECK(c.gradient(c.loss()) == c.gradient(loss, true));
      CHECK(counter.count == 1);
      CHECK(counter.both == 1);
      together = c.logits.grad().to_vector();
    }
    {
      const Counter counter;  // the graph was retained, its gradient used up
      apart = c.gradient(loss);
      CHECK(counter.count == 1);
      CHECK(counter.both == 0);
    }
    CHECK(together == apart);
    const NoGrad guard;
    const Counter counter;
    CHECK(c.loss().item() == loss.item());
    CHECK(counter.both == 0);
  }
}

TEST_CASE("the gradient of the loss multiplies what came with it") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  Case c;
  const std::vector<double> plain = c.gradient(c.loss());
  for (double factor : {65536.0, -0.5, 1.0 / 3, 0.0}) {
    INFO("times " << factor);
    const std::vector<double> scaled = c.gradient(c.loss() * factor);
    for (size_t i = 0; i < plain.size(); ++i) {
      const auto expected = static_cast<float>(plain[i]) * static_cast<float>(factor);
      CHECK(scaled[i] == static_cast<double>(expected));
    }
  }
}

TEST_CASE("f16 logits get their gradient when its scale is known") {
  if (runtime::device_count() == 0) WEFT_SKIP("no CUDA device");
  Case c(DType::f16);
  const Counter counter;
  // Of a row's 37 classes the least gradients vanish in f16, but not those of a scaled loss.
  const auto zeros = [](const std::vector<double>& x) { return std::ranges::count(x, 0.0); };
  const Tensor loss = c.loss();
  const std::vector<double> scaled = c.gradient(loss * 4096.0);
  CHECK(counter.count == 2);
  CHECK(counter.both == 0);
  CHECK(zeros(scaled) == 37);  // the ignored row
}

}  // namespace
}  // namespace weft
