// Every strategy on CUDA devices against one rank on a device: ranks as threads, each on the device
// of its number, collectives through host memory (dist/comm/device/staged.cc).
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

#include "core/runtime.h"
#include "dist/strategy/testing/oracle_training.h"
#include "kernels/testing/emulation.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::dist;

namespace {

#define NEEDS_DEVICE()                                                              \
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str()); \
  kernels::watch_accesses(false)

/// A strategy on so many ranks. dp has its ranks inside.
struct Case {
  StrategyOptions options;
  int ranks;
};

std::string describe(const Case& c) {
  return c.options.name + " on " + std::to_string(c.ranks) +
         (c.options.cpu_offload ? ", offloaded" : "") +
         (c.options.offload_optimizer ? ", the optimizer offloaded" : "");
}

MakeStrategy maker(const Case& c) {
  if (c.options.name != "dp") {
    return [c](const CommunicatorPtr& world) { return make_strategy(c.options, world); };
  }
  return [c](const CommunicatorPtr&) { return make_strategy(c.options, nullptr, c.ranks); };
}

OracleResult run(const OracleSetting& setting, const Case& c) {
  if (c.options.name == "dp") return train_oracle(setting, maker(c));
  return train_oracle_ranks(setting, maker(c), c.ranks)[0];
}

}  // namespace

TEST_CASE("every strategy on devices equals one device in f64") {
  NEEDS_DEVICE();
  const OracleSetting setting{.is_transformer = true, .rows = 5, .steps = 2, .on_device = true};
  const OracleResult one = train_oracle_alone(setting);
  for (const Case& c : std::vector<Case>{
           {{.name = "dp"}, 3},
           {{.name = "ddp"}, 3},
           {{.name = "fsdp"}, 3},
           {{.name = "fsdp", .cpu_offload = true}, 2},
           {{.name = "fsdp", .offload_optimizer = true}, 2},
           {{.name = "zero1"}, 2},
           {{.name = "zero2", .offload_optimizer = true}, 3},
           {{.name = "zero3"}, 2},
           {{.name = "hsdp", .cpu_offload = true}, 4},
           {{.name = "tp"}, 2},
           {{.name = "tp", .tensor_parallel = 2, .sequence_parallel = true, .parallel_head = true},
            4},
           {{.name = "fsdp+tp", .cpu_offload = true}, 4},
           {{.name = "pipeline"}, 3},
           {{.name = "pipeline", .pipeline_stages = 2}, 4}}) {
    INFO(describe(c));
    const OracleResult many = run(setting, c);
    CHECK(difference(many.parameters, one.parameters) < 1e-10);
    for (int step = 0; step < setting.steps; ++step) {
      CHECK(std::abs(many.losses[step] - one.losses[step]) < 1e-10);
      CHECK(std::abs(many.norms[step] - one.norms[step]) < 1e-10);
    }
  }
}

TEST_CASE("on devices too: tied weights, shards of no elements, accumulation, recomputation") {
  NEEDS_DEVICE();
  for (const std::string name : {"ddp", "fsdp"}) {
    INFO(name);
    check_against_one_rank({.accumulate = 2, .checkpoints = true, .steps = 2, .on_device = true},
                           maker({{.name = name}, 4}), 4);
  }
}

TEST_CASE("with a deterministic reduction every data-parallel strategy has one device's bits") {
  NEEDS_DEVICE();
  const OracleSetting setting{.dtype = DType::f32,
                              .is_transformer = true,
                              .rows = 6,
                              .dropout = 0.2,
                              .deterministic = 4,
                              .steps = 1,
                              .on_device = true};
  const OracleResult one = train_oracle_alone(setting);
  const auto check = [&](const std::string& name, int ranks) {
    const Case c{{.name = name}, ranks};
    INFO(describe(c));
    const OracleResult many = run(setting, c);
    CHECK(same_bits(many.parameters, one.parameters));
    CHECK(many.norms == one.norms);
  };
  for (const std::string name : {"ddp", "fsdp", "pipeline"}) check(name, 1);
  for (int ranks : {2, 4}) {
    for (const std::string name : {"dp", "ddp", "fsdp", "zero1", "zero2", "hsdp", "pipeline"}) {
      check(name, ranks);
    }
  }
}

TEST_CASE("fp16 with loss scaling on devices: skipped steps, scales and bits are one device's") {
  NEEDS_DEVICE();
  const OracleSetting setting{.dtype = DType::f32,
                              .autocast = DType::f16,
                              .is_transformer = true,
                              .rows = 6,
                              .deterministic = 4,
                              .loss_scale = 1 << 20,
                              .steps = 4,
                              .on_device = true};
  const OracleResult one = train_oracle_alone(setting);
  // At first gradients overflow; then there is a step that is taken.
  CHECK(one.scales[1] < one.scales[0]);
  CHECK(std::adjacent_find(one.scales.begin(), one.scales.end(), std::less_equal<>()) !=
        one.scales.end());
  for (const Case& c : std::vector<Case>{{{.name = "dp"}, 2},
                                         {{.name = "ddp"}, 4},
                                         {{.name = "fsdp", .cpu_offload = true}, 2},
                                         {{.name = "zero1"}, 4},
                                         {{.name = "pipeline"}, 2}}) {
    INFO(describe(c));
    const OracleResult many = run(setting, c);
    CHECK(many.scales == one.scales);
    CHECK(same_bits(many.parameters, one.parameters));
  }
  // Cut layers are sums of other terms, each rounded to f16: some units of 2^-11 of the gradients,
  // whose first step moves weights by no more than Adam's 0.01.
  OracleSetting first = setting;
  first.deterministic = 0;
  first.loss_scale = 1024;
  first.steps = 1;
  const OracleResult alone = train_oracle_alone(first);
  for (const Case& c : std::vector<Case>{{{.name = "tp"}, 2}, {{.name = "fsdp+tp"}, 4}}) {
    INFO(describe(c));
    const OracleResult cut = run(first, c);
    CHECK(cut.scales == alone.scales);
    CHECK(std::abs(cut.losses[0] - alone.losses[0]) < 8 * 0x1p-11 * alone.losses[0]);
    CHECK(std::abs(cut.norms[0] - alone.norms[0]) < 8 * 0x1p-11 * alone.norms[0]);
  }
}
