// NCCL, with as many ranks as $WEFT_NCCL_RANKS says (3), one process each. On one GPU they pretend
// to be hosts of their own, which NCCL connects through sockets: slow, and the same in every bit.
// The cases with the tag [.rank] are what each rank then does. Without a GPU all is skipped, and
// counted.
#include "dist/comm/device/nccl.h"

#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "core/runtime.h"
#include "core/stream.h"
#include "core/transfer.h"
#include "dist/comm/device/on_device.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/testing/conformance.h"
#include "dist/comm/testing/rank_processes.h"
#include "dist/data_parallel/ddp.h"
#include "dist/data_parallel/fsdp.h"
#include "dist/strategy/testing/oracle.h"
#include "tests/skip.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

int number_of_ranks() {
  const char* text = std::getenv("WEFT_NCCL_RANKS");
  return text ? std::atoi(text) : 3;
}

/// A [.rank] case as processes, two minutes at most.
CommandOutcome run_ranks_of(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  const std::string store = fmt::format("{}/nccl-{}", directory ? directory : "/tmp", ::getpid());
  const int ranks = number_of_ranks();
  const std::string one_gpu =
      runtime::device_count() >= ranks
          ? ""
          : "NCCL_HOSTID=r$r NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo "
            "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 "
            "NCCL_MAX_CTAS=2 NCCL_RAS_ENABLE=0";
  std::filesystem::remove_all(store);
  const CommandOutcome outcome =
      run_joined_ranks(ranks, name, one_gpu + " WEFT_STORE=" + store, 120);
  std::filesystem::remove_all(store);
  return outcome;
}

Device own_device() { return device_of_rank({DeviceType::cuda, 0}, local_rank()); }

NamedTensors train(const CommunicatorPtr& world, Device device, bool shards) {
  auto model = make_oracle_model(DType::f32);
  model->to(device);
  std::unique_ptr<DistributedDataParallel> ddp;
  std::unique_ptr<FullySharded> fsdp;
  optim::ParameterGroups groups(model->named_parameters());
  if (shards) {
    fsdp = std::make_unique<FullySharded>(
        *model, FsdpOptions{.shard = world, .average = ReduceOp::kSum}, wrap_modules<nn::Linear>());
    groups = fsdp->shard(groups);
  } else {
    ddp = std::make_unique<DistributedDataParallel>(
        *model, world, DdpOptions{.bucket_bytes = 600, .average = ReduceOp::kSum});
  }
  optim::SGD optimizer(groups, {.lr = 0.05, .momentum = 0.9});
  for (int step = 0; step < 2; ++step) {
    const OracleShare share =
        share_of(oracle_batch(step, 7, DType::f32), world->size(), world->rank());
    optimizer.zero_grad();
    const Tensor x = to_device(share.batch.x, device);
    const Tensor logits = ddp ? (*ddp)(x) : (*model)(x);
    backward(ops::cross_entropy(logits, to_device(share.batch.labels, device)) * share.weight);
    optimizer.step();
    if (fsdp) fsdp->after_step();
  }
  NamedTensors result;
  for (const auto& [name, tensor] : fsdp ? fsdp->full_state_dict(true) : model->state_dict()) {
    result.emplace_back(name, to_device(tensor, Device{}));
  }
  return result;
}

}  // namespace

TEST_CASE("a rank of NCCL conforms", "[.rank]") {
  const CommunicatorPtr host = join_world();
  for (const Collectives collectives : {Collectives::kExact, Collectives::kNccl}) {
    const CommunicatorPtr world =
        make_nccl_communicator(host, own_device(), {.collectives = collectives});
    run_conformance(*world, own_device(),
                    {.sums_have_one_order = collectives == Collectives::kExact});
  }
}

TEST_CASE("a rank of NCCL trains", "[.rank]") {
  const CommunicatorPtr host = join_world();
  const CommunicatorPtr world = make_nccl_communicator(host, own_device());
  const CommunicatorPtr alone = host->group({host->rank()}, "alone");
  const NamedTensors expected =
      train(make_nccl_communicator(alone, own_device()), own_device(), false);
  for (const bool shards : {false, true}) {
    CAPTURE(shards);
    CHECK(difference(train(world, own_device(), shards), expected) < 2e-6);
  }
}

TEST_CASE("a rank of NCCL that stalls", "[.rank]") {
  const CommunicatorPtr world =
      make_nccl_communicator(join_world(), own_device(), {.timeout_seconds = 5});
  const Tensor x = Tensor::zeros({4}, DType::f32, own_device());
  world->all_reduce(x).wait();
  synchronize(own_device());
  if (world->rank() == 1) ::sleep(20);
  const Work work = world->all_reduce(x);
  say_error_of([&] {
    for (int i = 0; i < 300 && !work.is_done(); ++i) ::usleep(100'000);
    work.wait();
  });
}

TEST_CASE("without NCCL its use is an error that says why") {
  const std::string problem = nccl_problem();
  if (problem.empty()) WEFT_SKIP("a machine without NCCL or a GPU");
  CHECK_THROWS_WITH(make_nccl_communicator(nullptr, Device{DeviceType::cuda, 0}),
                    Contains("NCCL") || Contains("CUDA") || Contains("cuda"));
}

TEST_CASE("NCCL's ranks conform, train as one does, and name what hangs") {
  const std::string problem = nccl_problem();
  if (!problem.empty()) WEFT_SKIP(("NCCL: " + problem).c_str());
  for (const char* name : {"a rank of NCCL conforms", "a rank of NCCL trains"}) {
    const CommandOutcome outcome = run_ranks_of(name);
    INFO(outcome.text);
    CHECK(outcome.code == 0);
  }
  const auto begin = std::chrono::steady_clock::now();
  const CommandOutcome stalled = run_ranks_of("a rank of NCCL that stalls");
  INFO(stalled.text);
  CHECK(stalled.code == number_of_ranks());
  CHECK_THAT(stalled.text, Contains("all_reduce #2 (sum f32 [4])"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
}
