// Every kind of fault that the emulator promises to find, in the smallest kernel that has it; the
// same kernel without the fault must pass under all schedules.
#include "kernels/simt/faults_test.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "core/emulated.h"
#include "core/runtime.h"
#include "kernels/simt/memory.h"

using namespace weft::simt;
using Catch::Matchers::Contains;
using weft::kernels::run_fault_kernel;

namespace {

struct Fault {
  const char* kernel;
  const char* finding;
};

const Fault kFaults[] = {
    {"missing_barrier", "data race in shared memory"},
    {"missing_barrier_before_overwrite", "data race in shared memory"},
    {"race_in_header_helper", "faults_test_helper.h:"},
    {"missing_warp_sync", "data race in shared memory"},
    {"narrow_stores", "data race in shared memory"},
    {"parameter_written", "of the kernel's parameters, which are constant"},
    {"named_barrier_too_few", "data race in shared memory"},
    {"missing_copy_wait", "cp.async of thread"},
    {"copy_wait_too_late", "cp.async of thread"},
    {"copy_overwrites_buffer", "cp.async of thread"},
    {"shared_out_of_bounds", "outside shared memory"},
    {"row_out_of_bounds", "index 32 is beyond an array of type 'float [32]'"},
    {"local_out_of_bounds", "index 4 is beyond an array of type 'float [4]'"},
    {"global_out_of_bounds", "beyond the end of device memory"},
    {"misaligned", "misaligned read of 16 bytes"},
    {"uninitialised", "uninitialised shared memory"},
    {"divergent_barrier", "divergent collective"},
    {"race_between_blocks", "another block"},
    {"mbarrier_never_completes", "deadlock"},
    {"ring0", "data race in shared memory"},
    {"ring1", "data race in shared memory"},
    {"tma0", "deadlock"},
    {"tma1", "an asynchronous operation"},
    {"tma2", "missing fence.proxy.async"},
    {"tma3", "tma_store_wait is missing"},
    {"tma4", "an asynchronous operation"},
    {"cluster0", ""},
    {"cluster1", "an asynchronous operation"},
    {"cluster2", "multicast to blocks 0x7 of a cluster of 2"},
    {"cluster3", "exits before"},
    {"tensor_core0", "missing fence.proxy.async"},
    {"tensor_core1", "missing wgmma_fence"},
    {"tensor_core2", "missing wgmma_wait"},
    {"early_overwrite", "an asynchronous operation"},
    {"early_rewrite", "missing wgmma_wait"},
    {"registers", "of the 64512 that 384 threads are launched with"},
    {"partial_mask", "divergent collective"},
};

template <class F>
void in_all_schedules(F&& f) {
  for (Completion completion : {Completion::kEager, Completion::kOnWait}) {
    for (Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
      for (uint64_t seed : {1, 2}) {
        if (seed == 2 && order != Order::kRandom) continue;
        INFO("order " << static_cast<int>(order) << ", seed " << seed << ", completion "
                      << static_cast<int>(completion));
        options() = {.order = order, .seed = seed, .completion = completion};
        f();
      }
    }
  }
  options() = {};
}

}  // namespace

TEST_CASE("Faults are found and named with their place") {
  for (const Fault& fault : kFaults) {
    INFO(fault.kernel);
    in_all_schedules([&] {
      std::vector<float> memory(4096, 1);
      memory[2048] = 0;
      const DeviceView view(memory.data(), memory.size() * sizeof(float));
      CHECK_THROWS_WITH(run_fault_kernel(fault.kernel, true, memory.data()),
                        Contains(fault.finding) && Contains("kernels/simt/faults_test"));
    });
  }
}

TEST_CASE("Sound kernels give no alarm and the same bits under all schedules") {
  for (const Fault& fault : kFaults) {
    INFO(fault.kernel);
    std::vector<float> first;
    in_all_schedules([&] {
      std::vector<float> memory(4096);
      for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i % 97);
      memory[2048] = 0;
      const DeviceView view(memory.data(), memory.size() * sizeof(float));
      CHECK_NOTHROW(run_fault_kernel(fault.kernel, false, memory.data()));
      if (first.empty()) first = memory;
      CHECK(first == memory);
    });
  }
}

TEST_CASE("Grids and blocks larger than any GPU's are refused") {
  const auto launch = [](dim3 grid, dim3 block) {
    run_grid(
        "kernel", {grid, block, 1, 0}, [](void*) {}, nullptr);
  };
  CHECK_NOTHROW(launch(dim3(1, 3, 2), 64));
  CHECK_THROWS_WITH(launch(dim3(1, 65536), 32), Contains("a grid of 1 x 65536 x 1 blocks"));
  CHECK_THROWS_WITH(launch(dim3(1, 1, 65536), 32), Contains("a grid of 1 x 1 x 65536 blocks"));
  CHECK_THROWS_WITH(launch(1, 1056), Contains("a block of 1056 x 1 x 1 threads"));
}

TEST_CASE("Kernels run on their stream's device and touch its memory alone") {
  using namespace weft;
  constexpr size_t kBytes = 4096 * sizeof(float);
  auto* const there = static_cast<float*>(runtime::allocate(1, kBytes));
  const runtime::StreamHandle stream = runtime::create_stream(1);
  runtime::set_bytes(1, there, 0, kBytes, stream);
  CHECK_THROWS_WITH(run_fault_kernel("misaligned", false, there),
                    Contains("in memory of cuda:1, by a kernel on cuda:0"));
  CHECK_THROWS_WITH(emulated::submit(stream, [] {}),
                    Contains("a stream of cuda:1 was submitted while cuda:0 is current"));
  {
    const runtime::DeviceGuard guard(1);
    CHECK_NOTHROW(run_fault_kernel("misaligned", false, there));
    CHECK_NOTHROW(emulated::submit(stream, [] {}));
  }
  CHECK(runtime::current_device() == 0);
  runtime::destroy_stream(1, stream);
  runtime::deallocate(1, there);
}

TEST_CASE("Device memory that nobody wrote is not read unnoticed") {
  constexpr size_t kFloats = 384, kBytes = kFloats * sizeof(float);
  const std::vector<float> ones(128, 1);
  auto* const data = static_cast<float*>(weft::runtime::allocate(0, kBytes));
  auto* const copy = static_cast<float*>(weft::runtime::allocate(0, kBytes));
  const auto run = [&](bool faulty, float* memory) {
    run_fault_kernel("uninitialised_global", faulty, memory);
  };
  CHECK_THROWS_WITH(run(false, data), Contains("uninitialised device memory") &&
                                          Contains("0 bytes into a block of 1536") &&
                                          Contains("kernels/simt/faults_test.cu"));
  // What comes from the host, or from a kernel, is written.
  weft::runtime::copy(0, data, ones.data(), 128 * sizeof(float), nullptr);
  CHECK_NOTHROW(run(false, data));
  CHECK_THROWS_WITH(run(true, data), Contains("uninitialised device memory"));
  // A copy within the device says of its target what is so of its source.
  weft::runtime::copy(0, copy, data, kBytes, nullptr);
  CHECK_NOTHROW(run(false, copy));
  CHECK_THROWS_WITH(run(true, copy), Contains("uninitialised device memory"));
  weft::runtime::set_bytes(0, copy, 0, kBytes, nullptr);
  CHECK_NOTHROW(run(true, copy));
  // Work that nobody watches may have written anything.
  options().races = false;
  run(false, data);
  options() = {};
  CHECK_NOTHROW(run(true, data));
  weft::runtime::deallocate(0, data);
  weft::runtime::deallocate(0, copy);
}
