#include "kernels/simt/basics_test.h"

#include <bit>
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/simt/memory.h"

using namespace weft::simt;
using Catch::Matchers::Contains;

namespace {

/// Runs f in each order of threads and blocks.
template <class F>
void in_all_orders(F&& f) {
  for (Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
    INFO("order " << static_cast<int>(order));
    options() = {.order = order, .seed = 7};
    f();
  }
  options() = {};
}

}  // namespace

TEST_CASE("Shuffles, shared memory, barriers and atomics add up") {
  std::vector<float> x(1000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  in_all_orders([&] {
    float y = 0;
    const DeviceView x_view(x.data(), x.size() * sizeof(float)), y_view(&y, sizeof(y));
    run_sum(x.data(), &y, 1000);
    CHECK(y == 499500);
  });
}

TEST_CASE("Dynamic shared memory transposes a ragged matrix") {
  constexpr int kN = 21;
  std::vector<int> x(kN * kN);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i);
  in_all_orders([&] {
    std::vector<int> y(x.size(), -1);
    const DeviceView x_view(x.data(), x.size() * sizeof(int)),
        y_view(y.data(), y.size() * sizeof(int));
    run_transpose(x.data(), y.data(), kN);
    int wrong = 0;
    for (int i = 0; i < kN; ++i) {
      for (int j = 0; j < kN; ++j) wrong += y[i * kN + j] != x[j * kN + i];
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("Exited threads count as arrived at __syncthreads") {
  in_all_orders([&] {
    std::vector<int> y(40);
    const DeviceView view(y.data(), y.size() * sizeof(int));
    run_early_exit(y.data());
    CHECK(y == std::vector<int>(40, 40));
  });
}

TEST_CASE("Warp operations give every lane its value") {
  in_all_orders([&] {
    std::vector<unsigned> y(7 * 32);
    const DeviceView view(y.data(), y.size() * sizeof(unsigned));
    run_warp(y.data());
    unsigned thirds = 0;
    for (unsigned lane = 0; lane < 32; lane += 3) thirds |= 1u << lane;
    for (unsigned lane = 0; lane < 32; ++lane) {
      CHECK(y[lane] == thirds);
      CHECK(y[32 + lane] == 0xffu << lane / 8 * 8);
      CHECK(y[64 + lane] == 31);
      CHECK(y[96 + lane] == (lane % 8 == 0 ? lane : lane - 1));
      CHECK(y[128 + lane] == (lane + 3 < 32 ? lane + 3 : lane));
      CHECK(y[160 + lane] == lane / 16 * 16 + 5);
      CHECK(y[192 + lane] == (lane ^ 1));
    }
  });
}

TEST_CASE("Deadlocks and divergent collectives are named") {
  CHECK_THROWS_WITH(run_deadlock(), Contains("deadlock_kernel: deadlock") &&
                                        Contains("__syncwarp") && Contains("basics_test.cu:"));
  std::vector<int> y(40);
  const DeviceView view(y.data(), y.size() * sizeof(int));
  CHECK_THROWS_WITH(run_divergent(y.data()),
                    Contains("divergent collective") && Contains("__shfl_xor_sync"));
  // The emulator works on after a failure.
  CHECK_NOTHROW(run_early_exit(y.data()));
}
