// nccl.cc on a stand-in for the library: ranks as threads, each on an emulated device.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <mutex>
#include <thread>

#include "core/transfer.h"
#include "dist/comm/device/nccl.h"
#include "dist/comm/device/nccl_api.h"
#include "dist/comm/device/testing/nccl_stand_in.h"
#include "dist/comm/in_process.h"
#include "dist/comm/testing/conformance.h"
#include "kernels/testing/emulation.h"

using namespace weft;
using namespace weft::dist;
using Catch::Matchers::Contains;

namespace {

void on_devices(int ranks, NcclOptions options,
                const std::function<void(const CommunicatorPtr&, Device)>& body,
                const nccl::Api& api = nccl_stand_in()) {
  kernels::watch_accesses(false);
  options.api = &api;
  run_ranks(ranks, [&](Communicator& host) {
    const Device device = device_of_rank({DeviceType::cuda, 0}, host.rank());
    body(make_nccl_communicator(CommunicatorPtr(&host, [](Communicator*) {}), device, options),
         device);
  });
}

/// What a collective of every rank launches and sends, of all ranks together, by the stand-in's
/// count and by the communicators'.
struct Counted {
  int64_t launches, sent, traffic;
};
Counted count(int ranks, Collectives collectives,
              const std::function<void(Communicator&, Device)>& collective) {
  int64_t traffic = 0;
  std::mutex mutex;
  on_devices(ranks, {.collectives = collectives}, [&](const CommunicatorPtr& world, Device device) {
    world->barrier().wait();
    if (world->rank() == 0) reset_nccl_stand_in_counts();
    world->barrier().wait();
    collective(*world, device);
    std::lock_guard lock(mutex);
    traffic += world->traffic().sent;
  });
  const NcclCounts counts = nccl_stand_in_counts();
  return {counts.launches, counts.sent, traffic};
}

}  // namespace

TEST_CASE("NCCL's collectives conform, with its sums and with exact ones") {
  for (const Collectives collectives : {Collectives::kNccl, Collectives::kExact}) {
    for (int ranks : {1, 2, 3}) {
      CAPTURE(ranks, collectives == Collectives::kExact);
      CHECK_NOTHROW(on_devices(
          ranks, {.collectives = collectives}, [&](const CommunicatorPtr& world, Device device) {
            run_conformance(*world, device,
                            {.sums_have_one_order = collectives == Collectives::kExact,
                             .groups_run_apart = false});
          }));
    }
  }
}

TEST_CASE("a collective is one launch of NCCL, in place, and sends what a ring sends") {
  constexpr int kRanks = 3;
  constexpr int64_t kPart = 64, kBytes = kPart * kRanks * 4;
  const auto whole = [](Device device) {
    return Tensor::zeros({kPart * kRanks}, DType::f32, device);
  };
  const auto part = [](Device device) { return Tensor::zeros({kPart}, DType::f32, device); };
  const auto check = [&](const Counted& counted, int64_t launches_of_a_rank, int64_t sent) {
    CHECK(counted.launches == launches_of_a_rank * kRanks);
    CHECK(counted.sent == sent);
    CHECK(counted.traffic == sent);
  };
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    const auto all_reduce = [&](Communicator& world, Device device) {
      world.all_reduce(whole(device), op).wait();
    };
    check(count(kRanks, Collectives::kNccl, all_reduce), 1, 2 * (kRanks - 1) * kBytes);
    // Sends and receives, additions of our own, a gather.
    check(count(kRanks, Collectives::kExact, all_reduce), 2, 2 * (kRanks - 1) * kBytes);
    const auto reduce_scatter = [&](Communicator& world, Device device) {
      world.reduce_scatter(part(device), whole(device), op).wait();
    };
    for (const Collectives c : {Collectives::kNccl, Collectives::kExact}) {
      check(count(kRanks, c, reduce_scatter), 1, (kRanks - 1) * kBytes);
    }
  }
  // NaN wins in a maximum: that is ours.
  const auto maximum = [&](Communicator& world, Device device) {
    world.all_reduce(whole(device), ReduceOp::kMax).wait();
  };
  check(count(kRanks, Collectives::kNccl, maximum), 2, 2 * (kRanks - 1) * kBytes);
  const auto all_gather = [&](Communicator& world, Device device) {
    world.all_gather(whole(device), part(device)).wait();
  };
  check(count(kRanks, Collectives::kNccl, all_gather), 1, (kRanks - 1) * kBytes);
  // Parts of different sizes are a group, of which one is empty.
  const auto uneven = [&](Communicator& world, Device device) {
    const std::vector<int64_t> counts = {kPart, 2 * kPart, 0};
    const Tensor mine = Tensor::zeros({counts[world.rank()]}, DType::f32, device);
    world.reduce_scatter(mine, whole(device), counts).wait();
    world.all_gather(whole(device), mine, counts).wait();
  };
  const Counted counted = count(kRanks, Collectives::kNccl, uneven);
  CHECK(counted.sent == 2 * (kRanks - 1) * kBytes);
  CHECK(counted.traffic == counted.sent);
  CHECK(counted.launches == 2 * kRanks);
  const auto broadcast = [&](Communicator& world, Device device) {
    world.broadcast(part(device), 1).wait();
  };
  check(count(kRanks, Collectives::kNccl, broadcast), 1, (kRanks - 1) * kPart * 4);
  const auto pipeline = [&](Communicator& world, Device device) {
    if (world.rank() > 0) world.recv(part(device), world.rank() - 1).wait();
    if (world.rank() + 1 < kRanks) world.send(part(device), world.rank() + 1).wait();
  };
  const Counted passed = count(kRanks, Collectives::kNccl, pipeline);
  CHECK(passed.launches == 2 * (kRanks - 1));
  CHECK(passed.sent == (kRanks - 1) * kPart * 4);
  CHECK(passed.traffic == passed.sent);
}

TEST_CASE("buffers for collectives come from NCCL, and go with their last user") {
  REQUIRE(nccl_stand_in_counts().registered == 0);
  std::vector<Tensor> left(2);
  on_devices(2, {}, [&](const CommunicatorPtr& world, Device device) {
    const Tensor buffer = buffer_for(*world, 100, DType::f32, device);
    copy_same_layout(Tensor::zeros({100}, DType::f32, device), buffer);
    world->barrier().wait();
    WEFT_CHECK(nccl_stand_in_counts().registered == 2 * 400, "not registered");
    world->barrier().wait();
    if (world->rank() == 0) reset_nccl_stand_in_counts();
    world->barrier().wait();
    world->all_reduce(buffer).wait();
    world->barrier().wait();
    WEFT_CHECK(nccl_stand_in_counts().unregistered == 0, "another memory was reduced");
    left[world->rank()] = buffer;
    // On the CPU, and on a device that NCCL does not serve here, it is plain memory.
    WEFT_CHECK(buffer_for(*world, 3, DType::f32, Device{}).device() == Device{}, "not on the CPU");
  });
  // The communicators have gone, and with them the registration.
  CHECK(nccl_stand_in_counts().registered == 0);
  CHECK(left[1].to_vector() == std::vector<double>(100, 0.0));
  left.clear();
}

TEST_CASE("a communicator whose farewell does not end is aborted") {
  static std::atomic<bool> parts;
  static std::atomic<int> aborted;
  parts = false;
  aborted = 0;
  nccl::Api api = nccl_stand_in();
  api.comm_finalize = [](nccl::Comm) {
    parts = true;
    return nccl::Result::kInProgress;
  };
  api.comm_get_async_error = [](nccl::Comm comm, nccl::Result* state) {
    const nccl::Result result = nccl_stand_in().comm_get_async_error(comm, state);
    if (parts) *state = nccl::Result::kInProgress;
    return result;
  };
  api.comm_abort = [](nccl::Comm comm) {
    ++aborted;
    return nccl_stand_in().comm_abort(comm);
  };
  on_devices(
      1, {}, [](const CommunicatorPtr&, Device) {}, api);
  CHECK(aborted == 1);
}

TEST_CASE("ranks of which one alone gives registered memory are told") {
  const auto mix = [](const CommunicatorPtr& world, Device device) {
    const Tensor buffer = buffer_for(*world, 4, DType::f32, device);
    const Tensor plain = Tensor::zeros({4}, DType::f32, device);
    copy_same_layout(plain, buffer);
    world->all_reduce(world->rank() == 0 ? buffer : plain).wait();
  };
  CHECK_THROWS_WITH(on_devices(2, {.timeout_seconds = 5}, mix),
                    Contains("of ranks 0 and 1 one alone has registered its memory"));
}

TEST_CASE("ranks that call different collectives are told") {
  const auto disagree = [](const CommunicatorPtr& world, Device device) {
    const Tensor x = Tensor::zeros({6 + 2 * (world->rank() % 2)}, DType::f32, device);
    world->all_reduce(x).wait();
  };
  CHECK_THROWS_WITH(on_devices(2, {.timeout_seconds = 5}, disagree),
                    Contains("all_reduce #1 (sum f32 [") && Contains("invalid usage") &&
                        Contains("rank 0 calls all_reduce of 6"));
}

TEST_CASE("a rank that does not come is an error of the others that names the collective") {
  const auto begin = std::chrono::steady_clock::now();
  const auto stall = [](const CommunicatorPtr& world, Device device) {
    const Tensor x = Tensor::zeros({4}, DType::f32, device);
    world->all_reduce(x).wait();
    if (world->rank() == 1) return;
    world->all_reduce(x).wait();
  };
  CHECK_THROWS_WITH(on_devices(2, {.timeout_seconds = 1}, stall),
                    Contains("all_reduce #2 (sum f32 [4])") && Contains("has not come"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
}
