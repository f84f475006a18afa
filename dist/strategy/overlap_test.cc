// How much of their communication ddp and fsdp hide behind computation, of what their schedules
// allow. Layers sleep instead of computing, so that the test measures the schedule and not the
// machine; the network is slowed down to a set latency and bandwidth.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <mutex>
#include <thread>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "dist/comm/device_mesh.h"
#include "dist/comm/in_process.h"
#include "dist/data_parallel/ddp.h"
#include "dist/data_parallel/fsdp.h"
#include "dist/strategy/strategy_kind.h"
#include "nn/nn.h"

using namespace weft;
using namespace weft::dist;

namespace {

constexpr double kForward = 0.012, kBackward = 0.024;  // seconds of a layer
constexpr int kLayers = 6, kWidth = 128;
constexpr double kLatency = 0.002, kBandwidth = 4e6;  // 66 kB: some 20 ms there and back

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// x, after a while; its gradient too.
Tensor slowly(const Tensor& x) {
  sleep_for(kForward);
  Tensor y = ops::clone(x.alias());
  return record("slowly", {x}, y, {}, [](const Backward& b) -> Tensors {
    sleep_for(kBackward);
    return {b.dy()};
  });
}

class Layer : public nn::Module {
 public:
  Layer() : linear(add<nn::Linear>("linear", kWidth, kWidth)) {}
  // The sleep stands between the product and what follows: the parameters' gradients are complete
  // behind it, as those of a layer are.
  Tensor forward(const Tensor& x) override { return slowly(linear(x)); }
  nn::Linear& linear;
};

class Net : public nn::Module {
 public:
  Net() {
    for (int i = 0; i < kLayers; ++i) layers.push_back(&add<Layer>(std::to_string(i)));
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (Layer* layer : layers) h = (*layer)(h);
    return h;
  }
  std::vector<Layer*> layers;
};

// Other work on the machine only adds to a step's time: the fastest of more steps is asked for
// before a step is called slow.
constexpr int kAttempts = 4;

struct Run {
  double best = 1e9;  // seconds of a step
  std::chrono::steady_clock::time_point begin;
  std::vector<FlightRecorder::Entry> collectives;

  void take(Run other) {
    if (other.best < best) *this = std::move(other);
  }
};

using Step = std::function<void(Net&)>;
using Wrap = std::function<Step(Net&, Communicator&)>;

/// The fastest of a few steps behind two that settle; on all ranks at once.
Run run(const Wrap& wrap, const InProcessOptions& network, int ranks = 2) {
  Run result;
  std::mutex mutex;
  run_ranks(
      ranks,
      [&](Communicator& world) {
        manual_seed(1);
        Net net;
        const Step step = wrap(net, world);
        for (int i = 0; i < 5; ++i) {
          world.barrier().wait();
          const auto begin = std::chrono::steady_clock::now();
          step(net);
          const double seconds =
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
          std::lock_guard lock(mutex);
          if (world.rank() != 0 || i < 2) continue;
          if (seconds < result.best) {
            result.best = seconds;
            result.begin = begin;
            result.collectives = world.recorder().entries();
          }
        }
      },
      network);
  return result;
}

Step backward_step(const std::function<Tensor(const Tensor&)>& forward) {
  return [forward](Net& net) {
    for (const Tensor& p : net.parameters()) p.set_grad({});
    const Tensor x = Tensor::full({4, kWidth}, 0.1).set_requires_grad(true);
    backward(ops::mean(forward(x)));
  };
}

constexpr int64_t kBucket = kWidth * kWidth * 4;

Step with_ddp(Net& net, Communicator& world) {
  const auto ddp = std::make_shared<DistributedDataParallel>(
      net, CommunicatorPtr(&world, [](Communicator*) {}),
      DdpOptions{.bucket_bytes = kBucket, .first_bucket_bytes = kBucket});
  return backward_step([ddp](const Tensor& x) { return (*ddp)(x); });
}

/// Any of the strategies that shard, by its name; at 4 ranks hsdp has two copies.
Wrap sharded(const std::string& strategy, bool prefetches = true) {
  return [strategy, prefetches](Net& net, Communicator& world) {
    FsdpOptions options{.shard = CommunicatorPtr(&world, [](Communicator*) {}),
                        .prefetches = prefetches};
    if (strategy == "zero1") options.sharding = Sharding::kZero1;
    if (strategy == "zero2") options.sharding = Sharding::kZero2;
    if (strategy == "hsdp") {
      const DeviceMesh mesh(options.shard, {{"replicate", world.size() / 2}, {"shard", 2}});
      options.replicate = mesh.shared_group("replicate");
      options.shard = mesh.shared_group("shard");
    }
    const auto fsdp = std::make_shared<FullySharded>(net, options, wrap_modules<Layer>());
    const Step step = backward_step([&net](const Tensor& x) { return net(x); });
    return [fsdp, step](Net& model) {
      step(model);
      fsdp->after_step();
    };
  };
}

InProcessOptions network() {
  InProcessOptions options;
  options.latency_seconds = kLatency;
  options.bytes_per_second = kBandwidth;
  return options;
}

Timeline predicted(const std::string& strategy, int ranks, double computation) {
  Net net;
  const ModelLayout layout = layout_of(net, wrap_modules<Layer>());
  const Sharing sharing = sharing_of(strategy, ranks);
  const StepWork work{.units = std::vector<StepWork::Pass>(
                          kLayers, {computation / kLayers / 3, 2 * computation / kLayers / 3})};
  return find_strategy(strategy).timeline(
      {{layout, work}}, sharing,
      {host_collective_seconds(sharing.shard, kLatency, kBandwidth),
       host_collective_seconds(sharing.replicas, kLatency, kBandwidth)},
      {.buckets = {kBucket, kBucket}});
}

void check(const std::string& strategy, const Wrap& wrap) {
  // What a step takes without a network stands for the computation: the sleeps, and the rest.
  Run alone, slowed;
  Timeline ideal;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    alone.take(run(wrap, {}));
    slowed.take(run(wrap, network()));
    ideal = predicted(strategy, 2, alone.best);
    if (ideal.hidden_share(slowed.best) >= 0.8) break;
  }
  CAPTURE(strategy, alone.best, slowed.best, ideal.end, ideal.serial());
  // There is something to hide, and most of it could be.
  CHECK(ideal.communication > 0.5 * ideal.computation);
  CHECK(ideal.serial() - ideal.end > 0.6 * ideal.communication);
  CHECK(ideal.hidden_share(slowed.best) >= 0.8);
  // The timeline shows it: the collectives lie within the step, beside the computation.
  double within = 0;
  for (const FlightRecorder::Entry& entry : slowed.collectives) {
    if (entry.state != FlightRecorder::State::kDone) continue;
    const double begin = std::chrono::duration<double>(entry.started - slowed.begin).count();
    const double seconds = std::chrono::duration<double>(entry.finished - entry.started).count();
    if (begin >= 0 && begin + seconds <= slowed.best) within += seconds;
  }
  CHECK(within > 0.9 * ideal.communication);
  CHECK(within + alone.best > 1.3 * slowed.best);
}

}  // namespace

TEST_CASE("ddp hides its reductions behind backward") { check("ddp", with_ddp); }

TEST_CASE("fsdp hides its unsharding and its reductions") { check("fsdp", sharded("fsdp")); }

TEST_CASE("without prefetching the timeline shows the difference") {
  CHECK(run(sharded("fsdp", false), network()).best > run(sharded("fsdp"), network()).best * 1.1);
}

TEST_CASE("a step of every strategy takes the time that its schedule predicts") {
  // Learnt without a network on two ranks; held back are four ranks with one.
  const double computation = run(with_ddp, {}).best;
  for (const std::string strategy : {"ddp", "zero1", "zero2", "fsdp", "hsdp"}) {
    const Timeline expected = predicted(strategy, 4, computation);
    double seconds = 1e9;
    for (int attempt = 0; attempt < kAttempts && seconds > 1.15 * expected.end; ++attempt) {
      const Wrap wrap = strategy == "ddp" ? Wrap(with_ddp) : sharded(strategy);
      seconds = std::min(seconds, run(wrap, network(), 4).best);
    }
    CAPTURE(strategy, computation, expected.serial());
    CHECK(seconds == Approx(expected.end).epsilon(0.15));
  }
}
