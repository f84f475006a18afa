// Collectives on a CUDA device's tensors: through host memory, as the emulator's stand-in for NCCL
// has it, and the strategies on them.
#include <catch2/catch.hpp>
#include <cmath>
#include <mutex>

#include "autograd/autocast.h"
#include "core/runtime.h"
#include "core/transfer.h"
#include "core/view.h"
#include "dist/comm/device/device_communicator.h"
#include "dist/comm/device/on_device.h"
#include "dist/comm/in_process.h"
#include "dist/comm/reduce_tree.h"
#include "dist/comm/testing/conformance.h"
#include "dist/data_parallel/ddp.h"
#include "dist/data_parallel/fsdp.h"
#include "dist/strategy/testing/oracle.h"
#include "optim/grad_scaler.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

#define NEEDS_DEVICE() \
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str())

Device device_of(int rank) { return {DeviceType::cuda, rank % runtime::device_count()}; }

/// Ranks as threads, each on its device, with staged collectives.
void on_devices(int ranks, const std::function<void(const CommunicatorPtr&, Device)>& body) {
  run_ranks(ranks, [&](Communicator& host) {
    const Device device = device_of(host.rank());
    body(make_staged_communicator(CommunicatorPtr(&host, [](Communicator*) {}), device), device);
  });
}

struct Training {
  bool on_device = true, shards = false, scales = false;
  int ranks = 2;
};

/// Parameters after K steps of SGD on the oracle's model, and the first step's gradients.
NamedTensors train(const Training& t) {
  NamedTensors result;
  std::mutex mutex;
  const auto body = [&](const CommunicatorPtr& world, Device device) {
    auto model = make_oracle_model(DType::f32);
    model->to(device);
    std::unique_ptr<DistributedDataParallel> ddp;
    std::unique_ptr<FullySharded> fsdp;
    optim::ParameterGroups groups(model->named_parameters());
    if (t.shards) {
      fsdp = std::make_unique<FullySharded>(*model,
                                            FsdpOptions{.shard = world, .average = ReduceOp::kSum},
                                            wrap_modules<nn::Linear>());
      groups = fsdp->shard(groups);
    } else {
      ddp = std::make_unique<DistributedDataParallel>(
          *model, world, DdpOptions{.bucket_bytes = 600, .average = ReduceOp::kSum});
    }
    optim::SGD optimizer(groups, {.lr = 0.05, .momentum = 0.9});
    optim::GradScaler scaler({.enabled = t.scales});
    for (int step = 0; step < 3; ++step) {
      const OracleShare share =
          share_of(oracle_batch(step, 7, DType::f32), world->size(), world->rank());
      optimizer.zero_grad();
      {
        const Autocast mode(t.scales ? DType::f16 : DType::f32);
        const Tensor x = to_device(share.batch.x, device);
        const Tensor logits = ops::cast(ddp ? (*ddp)(x) : (*model)(x), DType::f32);
        const Tensor loss =
            ops::cross_entropy(logits, to_device(share.batch.labels, device)) * share.weight;
        backward(scaler.scale(loss));
      }
      scaler.step(optimizer);
      scaler.update();
      if (fsdp) fsdp->after_step();
    }
    const NamedTensors state = fsdp ? fsdp->full_state_dict() : cloned(model->state_dict());
    if (world->rank() > 0) return;
    std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : state) result.emplace_back(name, to_device(tensor, Device{}));
  };
  if (t.on_device) {
    on_devices(t.ranks, body);
  } else {
    run_ranks(t.ranks, [&](Communicator& host) {
      body(CommunicatorPtr(&host, [](Communicator*) {}), Device{});
    });
  }
  return result;
}

}  // namespace

TEST_CASE("collectives on a device's tensors conform") {
  NEEDS_DEVICE();
  for (int ranks : {1, 2, 3}) {
    INFO(ranks);
    CHECK_NOTHROW(on_devices(ranks, [](const CommunicatorPtr& world, Device device) {
      run_conformance(*world, device);
    }));
  }
}

TEST_CASE("the device's reduction has the order of the host's") {
  NEEDS_DEVICE();
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kMin}) {
      if (op == ReduceOp::kMean && !is_floating(dtype)) continue;
      for (int ranks : {1, 2, 3, 5, 8}) {
        manual_seed(static_cast<uint64_t>(ranks));
        std::vector<Tensor> held, moved;
        std::vector<const void*> pointers;
        for (int r = 0; r < ranks; ++r) {
          const NoGrad guard;
          held.push_back(ops::cast(ops::randn({301}) * 100.0, dtype));
          if (r == 1 && is_floating(dtype)) {
            Tensor place = view::narrow(held[1], 0, 7, 1);
            ops::copy_(place, Tensor::full({1}, std::nan(""), dtype));
          }
          moved.push_back(to_device(held[r], device_of(0)));
        }
        for (const Tensor& x : held) pointers.push_back(x.raw());
        const Tensor expected = Tensor::empty({301}, dtype);
        reduce_tree(dtype, op, pointers, expected.raw(), 301);
        const std::vector<double> a = reduce_tree_on_device(op, moved).to_vector();
        const std::vector<double> b = expected.to_vector();
        CAPTURE(dtype, name(op), ranks);
        int different = 0;
        for (size_t i = 0; i < a.size(); ++i) {
          different += !(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])));
        }
        CHECK(different == 0);
      }
    }
  }
}

TEST_CASE("results are not there before somebody waits, and then all before them are") {
  NEEDS_DEVICE();
  on_devices(2, [](const CommunicatorPtr& world, Device device) {
    const Tensor x = to_device(Tensor::full({4}, 1), device);
    const Tensor y = to_device(Tensor::full({4}, 5), device);
    const Work first = world->all_reduce(x), second = world->all_reduce(y);
    world->barrier().wait();
    WEFT_CHECK(x.to_vector()[0] == 1 && !first.is_done(), "it came by itself");
    second.wait();
    WEFT_CHECK(x.to_vector()[0] == 2 && first.is_done() && y.to_vector()[0] == 10,
               "what was before it is missing");
    // A collective on the result of another one needs no wait in between.
    const Tensor both = Tensor::zeros({8}, DType::f32, device);
    world->all_reduce(x);
    world->all_gather(both, x).wait();
    WEFT_CHECK(both.to_vector() == std::vector<double>(8, 4), "it overtook the one before");
  });
}

TEST_CASE("an input that changes while it is under way is told") {
  NEEDS_DEVICE();
  CHECK_THROWS_WITH(on_devices(2,
                               [](const CommunicatorPtr& world, Device device) {
                                 const NoGrad guard;
                                 Tensor x = to_device(Tensor::full({4}, 1), device);
                                 const Work work = world->all_reduce(x);
                                 ops::zero_(x);
                                 work.wait();
                               }),
                    Contains("all_reduce #1 (sum f32 [4]): its input was changed"));
}

TEST_CASE("a tensor of another device is refused") {
  NEEDS_DEVICE();
  if (runtime::device_count() < 2) WEFT_SKIP("a second CUDA device");
  CHECK_THROWS_WITH(
      on_devices(2,
                 [](const CommunicatorPtr& world, Device device) {
                   world->all_reduce(to_device(Tensor::zeros({4}), device_of(device.index + 1)));
                 }),
      Contains("computes on cuda:") && Contains("got a tensor on cuda:"));
}

TEST_CASE("ddp and fsdp on devices meet one rank on the whole batch") {
  NEEDS_DEVICE();
  const NamedTensors alone = train({.on_device = false, .ranks = 1});
  for (const bool shards : {false, true}) {
    for (int ranks : {2, 3}) {
      CAPTURE(shards, ranks);
      CHECK(difference(train({.shards = shards, .ranks = ranks}), alone) < 2e-6);
    }
  }
}

TEST_CASE("ddp on devices meets one rank in f16 with a scaled loss") {
  NEEDS_DEVICE();
  const NamedTensors alone = train({.scales = true, .ranks = 1});
  const NamedTensors shared = train({.scales = true, .ranks = 2});
  // Sums over the batch are rounded to f16 in other places: some units of 2^-11.
  CHECK(difference(shared, alone) < 8 * 0x1p-11);
}
