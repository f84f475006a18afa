// A model on several devices by hand: its modules on different ones, activations moved by to().
// (Pipelines proper: strategy_test.cc, device_strategies_test.cc.)
#include <catch2/catch.hpp>

#include "core/runtime.h"
#include "core/transfer.h"
#include "dist/strategy/testing/oracle.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::dist;

namespace {

struct Net : nn::Module {
  Net(Device front, Device back)
      : first(add<nn::Linear>("first", 7, 13)), second(add<nn::Linear>("second", 13, 5)) {
    to(DType::f64);
    first.to(front);
    second.to(back);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = ops::gelu(first(ops::to(x, first.weight.device())));
    return second(ops::to(h, second.weight.device()));
  }
  nn::Linear &first, &second;
};

/// Three steps; the first gradient of the input too.
NamedTensors train(Device front, Device back) {
  manual_seed(4);
  Net net(front, back);
  optim::AdamW optimizer(net.named_parameters(), {.lr = 0.01});
  NamedTensors result;
  for (int step = 0; step < 3; ++step) {
    OracleBatch batch = oracle_batch(step, 6, DType::f64);
    batch.x.set_requires_grad(true);
    optimizer.zero_grad();
    const Tensor logits = net(batch.x);
    REQUIRE(logits.device() == back);
    backward(ops::cross_entropy(logits, ops::to(batch.labels, back)));
    REQUIRE(batch.x.grad().device() == Device{});
    if (step == 0) result.emplace_back("dx", batch.x.grad());
    optimizer.step();
  }
  for (const auto& [name, p] : net.named_parameters()) {
    result.emplace_back(name, to_device(p, Device{}));
  }
  return result;
}

}  // namespace

TEST_CASE("a model cut by hand over two devices trains as on one") {
  const NamedTensors one = train({}, {});
  CHECK(difference(train({}, {DeviceType::cpu, 1}), one) == 0);
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  CHECK(difference(train({}, {DeviceType::cuda, 0}), one) < 1e-12);
  if (runtime::device_count() < 2) WEFT_SKIP("a second CUDA device");
  CHECK(difference(train({DeviceType::cuda, 0}, {DeviceType::cuda, 1}), one) < 1e-12);
}
